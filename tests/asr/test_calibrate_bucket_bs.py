"""The calibration of buckets as it is run: a real model in a real limit, interrupted, resumed and
kept."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from millrace.asr import calibrate_bucket_bs, merge_calibration
from millrace.asr.calibration.trial import ROOT, ask
from tests.asr import calibration_corpus as corpus

SOAK_STEPS = 40


class Calibrated:
    """A corpus, the limit that leaves room for some rows of it, and the calibration of its bucket
    b_0_1."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        buckets = {"b_0_1": (150, 0.95, 1.0), "b_1_2": (9, 1.9, 2.0), "b_2_3": (0, 2, 3)}
        self.config = corpus.write(folder, buckets)
        few = ask(corpus.request(self.config, "b_0_1", "worst", 8.0, 8, 2))
        # Relative to what Python and torch take on this machine: room for some twenty more rows.
        self.limit = few["step_peak_gb"] + 0.018
        self.code = calibrate_bucket_bs.main(self.flags("b_0_1", start=24))
        self.bytes = self.output("b_0_1").read_bytes()
        self.found = json.loads(self.bytes)

    def output(self, bucket: str) -> Path:
        return self.folder / "calibration" / f"{bucket}.json"

    def flags(self, bucket: str, *more: str, soak: int = SOAK_STEPS, start: int = 8) -> list[str]:
        return [
            *(
                "--bucket",
                bucket,
                "--bucket-config",
                str(self.config),
                "--output",
                str(self.output(bucket)),
            ),
            *("--max-memory-gb", repr(self.limit), "--start_bs", str(start), "--steps", "2"),
            *("--soak-steps", str(soak), "--model-options", json.dumps(corpus.MODEL_OPTIONS)),
            *("--device", "cpu", *more),
        ]


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory: pytest.TempPathFactory) -> Calibrated:
    return Calibrated(tmp_path_factory.mktemp("calibration"))


def test_the_batch_stays_within_the_limit_for_a_whole_soak_and_a_quarter_more_does_not(calibrated):
    assert calibrated.code == 0
    found, limit = calibrated.found, calibrated.limit
    assert found["limited_by"] in ("memory", "soak") and found["key"]["device"] == "cpu"
    assert found["soak"]["steps"] >= SOAK_STEPS and not found["soak"]["oom"]
    assert found["soak"]["peak_gb"] <= limit
    assert 8 < found["batch_size"] < 150
    assert all(
        entry["why"] and entry["batch_size"] > found["batch_size"] for entry in found["backed_off"]
    )
    more = math.ceil(1.25 * found["batch_size"])
    over = ask(corpus.request(calibrated.config, "b_0_1", "worst", limit, more, 2))
    assert over["oom"] or over["peak_gb"] > limit


def test_interrupted_and_restarted_it_repeats_no_finished_bucket(calibrated, capfd):
    """The second bucket is killed in its first trials; then all are run again, as a restarted
    workflow would."""
    before = calibrated.output("b_0_1").stat().st_mtime_ns
    flags = calibrated.flags("b_1_2", "--max-memory-gb", "8", soak=0)  # room for all of its rows
    command = [sys.executable, "-m", "millrace.asr.calibrate_bucket_bs", *flags]
    killed = subprocess.Popen(
        command, cwd=ROOT, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert "rows: " in killed.stderr.readline()
    deadline = time.monotonic() + 60
    search = psutil.Process(killed.pid)
    while not (trials := search.children(recursive=True)) and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.5)  # past Python's start
    killed.kill()
    killed.wait()
    killed.stderr.close()
    while any(trial.is_running() for trial in trials) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert trials and not any(trial.is_running() for trial in trials), (
        "a trial lives on, and holds memory"
    )
    assert not calibrated.output("b_1_2").exists()
    capfd.readouterr()
    for again in (calibrated.flags("b_0_1"), flags):
        assert calibrate_bucket_bs.main(again) == 0
    log = capfd.readouterr().err.splitlines()
    kept = next(at for at, line in enumerate(log) if "b_0_1 (kept)" in line)
    assert not any("rows: " in line.split(")", 1)[-1] and "peak" in line for line in log[:kept])
    assert any("b_1_2 (measured)" in line for line in log[kept:])
    assert calibrated.output("b_0_1").read_bytes() == calibrated.bytes
    assert calibrated.output("b_0_1").stat().st_mtime_ns == before
    second = json.loads(calibrated.output("b_1_2").read_text())
    assert (second["batch_size"], second["limited_by"], second["soak"]) == (9, "rows", None)
    assert [trial["rows"] for trial in second["trials"]] == [8, 9]
    # Calibrated with another soak, the two do not belong together.
    flags = [
        "--bucket-config",
        str(calibrated.config),
        "--output",
        str(calibrated.folder / "all.json"),
    ]
    paths = [str(calibrated.output(bucket)) for bucket in ("b_0_1", "b_1_2")]
    assert merge_calibration.main([*flags, "--calibrations", *paths]) == 1
    assert "another limit_gb, soak_steps" in capfd.readouterr().err


def test_a_calibration_survives_its_output_and_a_new_key_calibrates_again(calibrated, capfd):
    calibrated.output("b_0_1").unlink()  # as Snakemake does before it makes an output anew
    assert calibrate_bucket_bs.main(calibrated.flags("b_0_1")) == 0
    assert (
        "(kept)" in capfd.readouterr().err
        and calibrated.output("b_0_1").read_bytes() == calibrated.bytes
    )
    assert (
        calibrate_bucket_bs.main(calibrated.flags("b_0_1", "--max-memory-gb", "0.01", start=1)) == 1
    )
    log = capfd.readouterr().err
    assert f"limit_gb was {calibrated.found['key']['limit_gb']}, and is 0.01" in log
    assert "a batch of 1 does not fit" in log


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--bucket", "b_9"], "there is no bucket 'b_9'"),
        (["--max_memory_gb", "2e6"], "2e+06 GB is more than cpu has"),
        (["--max_memory_gb", "-1"], "max_memory_gb must be"),
        (["--steps", "1"], "steps must be at least 2"),
        (["--min_bs", "5000"], "min_bs must be at most max_bs"),
        (["--model_path", "/nowhere"], "nowhere"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(calibrated, tmp_path, capfd, flags, message):
    output = tmp_path / "out.json"
    assert calibrate_bucket_bs.main(calibrated.flags("b_0_1", "--output", str(output), *flags)) == 1
    log = capfd.readouterr().err
    assert message in log and "Traceback" not in log and not output.exists()


@pytest.mark.parametrize("device", ["h200", "tpu"])
def test_another_machines_device_is_refused_by_name(calibrated, capfd, device):
    with pytest.raises(SystemExit):
        calibrate_bucket_bs.main(calibrated.flags("b_0_1", "--device", device))
    message = f"'{device}' is none of auto, cpu, cuda: calibrate on the device itself"
    assert message in capfd.readouterr().err


def test_a_bucket_without_rows_is_no_error(calibrated, capfd):
    """The rules know the buckets by their edges, before anything is in them."""
    assert calibrate_bucket_bs.main(calibrated.flags("b_2_3")) == 0
    assert "b_2_3 has no rows" in capfd.readouterr().err
    assert json.loads(calibrated.output("b_2_3").read_text()) == {"bucket": "b_2_3", "empty": True}
