"""All calibrated buckets on two real ranks, within the limit and above it; by the step and by the seed's
flag."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest

from millrace.asr import verify_calibration
from millrace.asr.calibration.trial import ROOT
from millrace.asr.inputs import CALIBRATION, VERIFICATION, AsrInputs
from tests.asr import calibration_corpus as corpus


@pytest.mark.parametrize(
    ("step", "limit", "code"),
    [(["verify_calibration"], "2", 0), (["calibrate_bucket_bs", "--mode", "verify_all"], "0.1", 1)],
)
def test_every_bucket_is_trained_on_all_ranks(tmp_path, step, limit, code):
    config = corpus.write(tmp_path, {"b_0_1": (24, 0.2, 0.3), "b_1_2": (24, 0.4, 0.5)})
    calibrated, output = tmp_path / "calibrated_bs.json", tmp_path / "verified.json"
    calibrated.write_text(json.dumps({"b_0_1": {"batch_size": 4}, "b_1_2": {"batch_size": 3}}))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", "-m"]
    command += [f"millrace.asr.{step[0]}", *step[1:], "--bucket-config", str(config), "--device", "cpu"]
    command += ["--model_options", json.dumps(corpus.MODEL_OPTIONS), "--max_memory_gb", limit]
    command += ["--calibrated", str(calibrated), "--soak_steps", "6", "--output", str(output)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT}/scripts:{ROOT}"}
    found = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert found.returncode == code, found.stderr[-3000:]
    assert output.exists() is (code == 0)
    if code:
        assert re.search(
            r"rank \d: the peak of .* GB at step \d.* is above the limit of 0\.100 GB", found.stderr
        )
        return
    verified = json.loads(output.read_text())
    assert verified["world_size"] == 2 and [rank["rank"] for rank in verified["ranks"]] == [0, 1]
    assert verified["steps"] in (6, 7, 8) and 0.1 < verified["peak_memory_gb"] < 2


def test_a_calibration_that_is_not_there_is_said_in_one_line(tmp_path, capfd):
    config = corpus.write(tmp_path, {"b_0_1": (3, 0.2, 0.3)})
    flags = ["--bucket-config", str(config), "--calibrated", str(tmp_path / "none.json"), "--device", "cpu"]
    assert (
        verify_calibration.main([*flags, "--output", str(tmp_path / "out.json"), "--max_memory_gb", "2"]) == 1
    )
    told = capfd.readouterr().err
    assert "no calibration" in told and "Traceback" not in told and not (tmp_path / "out.json").exists()


@pytest.mark.parametrize(
    ("device", "steps", "verified"), [("auto", 200, True), ("h200", 200, False), ("cpu", 0, False)]
)
def test_only_what_was_measured_here_is_verified(device, steps, verified):
    section = {"source": "speech", "edges": "seed", "calibration": {"device": device, "soak_steps": steps}}
    wanted = AsrInputs(section, None, lambda: ["index.parquet"]).calibrate()
    assert wanted == [CALIBRATION, *([VERIFICATION] if verified else [])]
