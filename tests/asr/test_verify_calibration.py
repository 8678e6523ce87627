"""All calibrated buckets on two real ranks, within the limit and above it."""

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


@pytest.mark.parametrize(("limit", "code"), [("2", 0), ("0.1", 1)])
def test_every_bucket_is_trained_on_all_ranks(tmp_path, limit, code):
    config = corpus.write(tmp_path, {"b_0_1": (24, 0.2, 0.3), "b_1_2": (24, 0.4, 0.5)})
    calibration, output = tmp_path / "calibrated_bs.json", tmp_path / "verified.json"
    calibration.write_text(json.dumps({"b_0_1": {"batch_size": 4}, "b_1_2": {"batch_size": 3}}))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", "-m"]
    command += ["millrace.asr.verify_calibration", "--bucket-config", str(config), "--device", "cpu"]
    command += ["--model-options", json.dumps(corpus.MODEL_OPTIONS), "--max_memory_gb", limit]
    command += ["--calibration", str(calibration), "--soak-steps", "6", "--output", str(output)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == code, done.stderr[-3000:]
    assert output.exists() is (code == 0)
    if code:
        message = r"rank \d: the peak of .* GB at step \d.* is above the limit of 0\.100 GB"
        assert re.search(message, done.stderr)
        return
    verified = json.loads(output.read_text())
    assert verified["world_size"] == 2 and [rank["rank"] for rank in verified["ranks"]] == [0, 1]
    assert verified["steps"] in (6, 7, 8) and 0.1 < verified["peak_memory_gb"] < 2


def test_a_missing_calibration_is_said_in_one_line(tmp_path, capfd):
    config, output = corpus.write(tmp_path, {"b_0_1": (3, 0.2, 0.3)}), tmp_path / "out.json"
    flags = ["--bucket-config", str(config), "--calibration", str(tmp_path / "none.json"), "--device", "cpu"]
    assert verify_calibration.main([*flags, "--output", str(output), "--max-memory-gb", "2"]) == 1
    log = capfd.readouterr().err
    assert "no calibration" in log and "Traceback" not in log and not output.exists()


@pytest.mark.parametrize(("steps", "verified"), [(200, [VERIFICATION]), (0, [])])
def test_calibrations_are_verified_unless_soaks_are_switched_off(steps, verified):
    section = {
        "source": "speech",
        "edges": "default",
        "num_buckets": 7,
        "last_edge": 30.0,
        "ranks": 1,
        "nodes": 1,
    }
    section["calibration"] = {"soak_steps": steps, "device": "cpu"}
    assert AsrInputs(section, None, lambda: ["index.parquet"]).calibrate() == [CALIBRATION, *verified]
