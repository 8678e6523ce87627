"""All calibrated buckets on two real ranks, within the limit and above it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from millrace.asr import calibrate_bucket_bs, verify_calibration
from millrace.asr.calibration.trial import ROOT
from millrace.common import atomic, jsonl, processes
from millrace.common.training.updates import Updates
from tests import forks
from tests.asr import calibration_corpus as corpus
from tests.asr.test_merge_calibration import calibration

LONG = pytest.mark.long


def flags(config: Path, *more: str) -> list[str]:
    model = json.dumps(corpus.MODEL_OPTIONS)
    return [f"--bucket-config={config}", "--device=cpu", f"--model-options={model}", *more]


@pytest.mark.parametrize("limit, code", [("16", 0), ("0.1", 1)])
def test_every_bucket_is_trained_on_all_ranks(tmp_path, limit, code):
    config = corpus.write(tmp_path, {"b_0_1": (24, 0.2, 0.3), "b_1_2": (24, 0.4, 0.5)})
    calibration, output = tmp_path / "calibrated_bs.json", tmp_path / "verified.json"
    calibration.write_text(json.dumps({"b_0_1": {"batch_size": 4}, "b_1_2": {"batch_size": 3}}))
    arguments = flags(config, f"--max_memory_gb={limit}", "--soak-steps=6")
    arguments += [f"--calibration={calibration}", f"--output={output}"]
    errors = tmp_path / "stderr"
    ranks = forks.start_ranks(2, lambda: verify_calibration.main(arguments), errors)
    assert forks.joined(ranks) == [code, code], errors.read_text()[-3000:]
    assert output.exists() is (code == 0)
    if code:
        message = r"rank \d: the peak of .* GB at step \d.* is above the limit of 0\.100 GB"
        assert re.search(message, errors.read_text())
        return
    verified = jsonl.read(output)
    assert verified["world_size"] == 2 and [rank["rank"] for rank in verified["ranks"]] == [0, 1]
    assert verified["steps"] in (6, 7, 8) and 0.1 < verified["peak_memory_gb"] < 16
    assert verified["peak_memory_gb"] == max(rank["peak_gb"] for rank in verified["ranks"])


def test_a_rank_that_runs_out_of_memory_within_a_step_ends_the_others(tmp_path, monkeypatch):
    config = corpus.write(tmp_path, {"b_0_1": (24, 0.2, 0.3)})
    places = [tmp_path / "calibrated_bs.json", tmp_path / "verified.json"]
    places[0].write_text(json.dumps({"b_0_1": {"batch_size": 4}}))
    forward = Updates.forward
    batches = []

    def out_of_memory(updates, batch, more):
        batches.append(batch)
        if os.environ["RANK"] == "1" and len(batches) == 2:
            raise MemoryError
        return forward(updates, batch, more)

    monkeypatch.setattr(Updates, "forward", out_of_memory)
    arguments = flags(config, "--max-memory-gb=16", "--soak-steps=3")
    arguments += [f"--calibration={places[0]}", f"--output={places[1]}"]
    errors = tmp_path / "stderr"
    ranks = forks.start_ranks(2, lambda: verify_calibration.main(arguments), errors)
    assert 0 not in forks.joined(ranks)
    assert "rank 1: out of memory at step 2" in errors.read_text()
    assert not places[1].exists()


@pytest.mark.parametrize(
    "step, typed",
    [
        ("train_model", "--bucket-dir nowhere"),
        pytest.param("verify_calibration", "--bucket-config no.json", marks=LONG),
        pytest.param("calibrate_bucket_bs", "--mode verify_all --calibration no.json", marks=LONG),
    ],
)
def test_a_step_that_trains_has_the_environment_of_the_launcher_also_without_it(
    tmp_path, step, typed
):
    shown = "print(torch.get_num_threads(), *(os.environ[name] for name in sys.argv[1:]), sep='|')"
    code = (
        f"import os, sys; from millrace.asr import {step}; {step}.main({typed.split()});"
        " import torch;"
        f" {shown}"
    )
    names = list(processes.TRAINING_ENVIRONMENT)
    clean = {name: value for name, value in os.environ.items() if name not in names}
    clean |= {"PYTHONPATH": str(ROOT), "NUMEXPR_NUM_THREADS": "5"}
    command = [sys.executable, "-c", code, *names]
    done = subprocess.run(command, cwd=tmp_path, env=clean, capture_output=True, text=True)
    assert "there are no buckets here" in done.stderr
    expected = {
        **processes.TRAINING_ENVIRONMENT,
        "NUMEXPR_NUM_THREADS": "5",
    }  # what the user has set stays
    assert done.stdout.strip().split("|") == ["1", *expected.values()], done.stderr[-2000:]


def test_after_the_loop_over_buckets_verify_all_merges_by_itself(tmp_path, monkeypatch, capfd):
    names = ("b_0_1", "b_1_2")
    config = corpus.write(tmp_path, {names[0]: (24, 0.2, 0.3), names[1]: (24, 0.4, 0.5)})
    monkeypatch.chdir(tmp_path)
    verify_all = flags(config, "--mode=verify_all", "--max-memory-gb=16")

    def calibrated(rows: int) -> None:
        # The last is left over from other edges.
        for name in (*names, "b_2_3"):
            found = calibration("b_0_3", bucket=name, batch_size=rows, longest_seconds=0.5)
            atomic.write_json(tmp_path / f"results/asr/calibration/buckets/{name}.json", found)

    def verify(soak: int = 2) -> str:
        """What it logs; in a fork, as it limits the memory of its process."""
        errors = tmp_path / "stderr"
        errors.unlink(missing_ok=True)
        arguments = [*verify_all, f"--soak-steps={soak}"]
        verifying = forks.start(lambda: calibrate_bucket_bs.main(arguments), errors)
        assert forks.joined([verifying]) == [0], errors.read_text()
        return errors.read_text()

    merged = tmp_path / "results/asr/calibration/calibrated_bs.json"
    # The second time a bucket was calibrated again, with another result.
    for rows in (3, 5):
        calibrated(rows)
        assert "calibrated_bs.json: merged from 2 calibrations of buckets" in verify()
        buckets = jsonl.read(merged)["buckets"]
        assert [buckets[name]["batch_size"] for name in names] == [rows, rows]
    verification = tmp_path / "results/asr/calibration/verification.json"
    assert jsonl.read(verification)["world_size"] == 1
    assert "merged" not in verify(soak=0), "nothing has changed"
    assert jsonl.read(verification)["steps"] > 0, "asked for by hand, it verifies"

    Path("results/asr/calibration/buckets/b_0_1.json").unlink()
    assert calibrate_bucket_bs.main(verify_all) == 1
    assert "buckets without a calibration: b_0_1" in capfd.readouterr().err


def test_a_missing_calibration_is_said_in_one_line(tmp_path, capfd):
    config, output = corpus.write(tmp_path, {"b_0_1": (3, 0.2, 0.3)}), tmp_path / "out.json"
    places = [f"--calibration={tmp_path}/none.json", f"--output={output}"]
    assert verify_calibration.main(flags(config, *places, "--max-memory-gb=2")) == 1
    log = capfd.readouterr().err
    assert "no calibration" in log and "Traceback" not in log and not output.exists()
