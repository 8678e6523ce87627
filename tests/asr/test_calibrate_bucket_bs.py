"""The calibration of buckets as it is run: real trials in a real limit, interrupted, resumed and
kept."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from millrace.asr import calibrate_bucket_bs, merge_calibration
from millrace.asr.calibration import steps, trial, worst_case
from millrace.common import jsonl
from tests import forks
from tests.asr import calibration_corpus as corpus
from tests.asr.calibration.test_search import Device

SOAK_STEPS = 40


class Scripted:
    """Trials whose answers a formula gives, of a device out of memory above 15 GB; their requests
    are kept."""

    def __init__(self) -> None:
        self.requests: list[dict] = []
        self.device = Device(fixed=1.0, each=0.2)

    def ask(self, request: dict) -> dict:
        self.requests.append(request)
        if request["kind"] == "device":
            facts = {"kind": "cpu", "name": "a device", "memory_gb": 64.0}
            return {**facts, "precision": "32-true"}
        answer = self.device(request["rows"])
        return {**answer, "steps": request["steps"]}

    def rows(self) -> list[int]:
        """Of the trials since the last call."""
        rows = [request["rows"] for request in self.requests if "rows" in request]
        self.requests.clear()
        return rows


@pytest.fixture
def scripted(monkeypatch) -> Scripted:
    answers = Scripted()
    monkeypatch.setattr(trial, "ask", answers.ask)
    return answers


@pytest.fixture(scope="module")
def config(tmp_path_factory) -> Path:
    buckets = {"b_0_1": (150, 0.95, 1.0), "b_1_2": (9, 1.9, 2.0), "b_2_3": (0, 2, 3)}
    return corpus.write(tmp_path_factory.mktemp("calibration"), buckets)


class Calibrations:
    """The command line, and what it has made in a folder."""

    def __init__(self, config: Path, folder: Path) -> None:
        self.config, self.folder = config, folder
        self.limit = 10.0

    def output(self, bucket: str) -> Path:
        return self.folder / f"{bucket}.json"

    def flags(self, bucket: str, *more: str, soak: int = SOAK_STEPS, start: int = 8) -> list[str]:
        flags = [f"--bucket={bucket}", f"--bucket-config={self.config}"]
        flags += [f"--output={self.output(bucket)}", f"--max-memory-gb={self.limit!r}"]
        flags += [f"--start_bs={start}", "--steps=2", f"--soak-steps={soak}", "--device=cpu"]
        flags += ["--model-options", json.dumps(corpus.MODEL_OPTIONS)]
        return [*flags, *more]

    def calibrate(self, bucket: str, *more: str, **steps: int) -> int:
        return calibrate_bucket_bs.main(self.flags(bucket, *more, **steps))

    def found(self, bucket: str) -> dict:
        return jsonl.read(self.output(bucket))


@pytest.fixture
def calibrations(config, tmp_path) -> Calibrations:
    return Calibrations(config, tmp_path)


@pytest.fixture
def in_forks(monkeypatch) -> None:
    """Trials that really train, in forks of this process."""
    monkeypatch.setattr(trial, "ask", lambda request: forks.answered(lambda: steps.answer(request)))


def test_a_bucket_is_calibrated_by_steps_that_train(calibrations, in_forks, capfd):
    calibrations.limit = 16.0  # room for all of its rows
    assert calibrations.calibrate("b_1_2", soak=4) == 0
    assert "b_1_2 (measured)" in capfd.readouterr().err
    found = calibrations.found("b_1_2")
    assert [trial["rows"] for trial in found["trials"]] == [8, 9]
    assert all(trial["heaviest"]["rows"] == trial["rows"] for trial in found["trials"])
    assert found["trials"][0]["heaviest"]["characters"] == 16.125, "the longest transcripts"
    assert found["trials"][0]["heaviest"]["seconds"] == pytest.approx(2.0), "the longest audio"
    assert (found["batch_size"], found["limited_by"]) == (9, "rows")
    assert found["soak"]["steps"] >= 4 and not found["soak"]["oom"]
    assert 0 < found["peak_memory_gb"] < 16 and found["key"]["device"] == "cpu"


@pytest.mark.long
def test_the_batch_stays_within_the_limit_for_a_whole_soak_and_a_quarter_more_does_not(
    calibrations,
):
    few = trial.ask(corpus.request(calibrations.config, "b_0_1", "worst", 8.0, 8, 2))
    # Relative to what Python and torch take on this machine: room for some twenty more rows.
    calibrations.limit = limit = few["step_peak_gb"] + 0.018
    assert calibrations.calibrate("b_0_1", start=24) == 0
    found = calibrations.found("b_0_1")
    assert found["limited_by"] in ("memory", "soak") and found["key"]["device"] == "cpu"
    assert found["soak"]["steps"] >= SOAK_STEPS and not found["soak"]["oom"]
    assert found["soak"]["peak_gb"] <= limit
    assert 8 < found["batch_size"] < 150
    more = math.ceil(1.25 * found["batch_size"])
    over = trial.ask(corpus.request(calibrations.config, "b_0_1", "worst", limit, more, 2))
    assert over["oom"] or over["peak_gb"] > limit


@pytest.mark.long
def test_a_trial_ends_with_the_calibration_that_is_killed(calibrations):
    calibrations.limit = 16.0
    flags = calibrations.flags("b_1_2", soak=0)
    command = [sys.executable, "-m", "millrace.asr.calibrate_bucket_bs", *flags]
    killed = subprocess.Popen(
        command, cwd=trial.ROOT, stderr=subprocess.PIPE, text=True, start_new_session=True
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
    assert not calibrations.output("b_1_2").exists()


def test_restarted_it_repeats_no_finished_bucket(calibrations, scripted, tmp_path, capfd):
    """Interrupted in its second bucket: then all are run again, as a restarted workflow would."""
    assert calibrations.calibrate("b_0_1") == 0
    first = calibrations.output("b_0_1")
    content, written = first.read_bytes(), first.stat().st_mtime_ns
    asked = scripted.rows()
    assert len(asked) > 3 and asked[-1] == calibrations.found("b_0_1")["batch_size"]
    capfd.readouterr()

    assert calibrations.calibrate("b_0_1") == calibrations.calibrate("b_1_2", soak=0) == 0
    assert scripted.rows() == [8, 9]
    log = capfd.readouterr().err
    assert "b_0_1 (kept)" in log and "b_1_2 (measured)" in log
    assert (first.read_bytes(), first.stat().st_mtime_ns) == (content, written)
    second = calibrations.found("b_1_2")
    assert (second["batch_size"], second["limited_by"], second["soak"]) == (9, "rows", None)
    assert calibrations.calibrate("b_1_2", soak=0) == 0 and scripted.rows() == []

    # Calibrated with another soak, the two do not belong together.
    flags = [f"--bucket-config={calibrations.config}", f"--output={tmp_path}/all.json"]
    paths = [str(calibrations.output(bucket)) for bucket in ("b_0_1", "b_1_2")]
    assert merge_calibration.main([*flags, "--calibrations", *paths]) == 1
    assert "another soak_steps" in capfd.readouterr().err


def test_a_calibration_survives_its_output_and_a_new_key_calibrates_again(
    calibrations, scripted, capfd, monkeypatch
):
    assert calibrations.calibrate("b_0_1") == 0
    content = calibrations.output("b_0_1").read_bytes()
    calibrations.output("b_0_1").unlink()  # as Snakemake does before it makes an output anew
    assert calibrations.calibrate("b_0_1") == 0
    assert "(kept)" in capfd.readouterr().err
    assert calibrations.output("b_0_1").read_bytes() == content

    case = worst_case.find(calibrations.config, "b_0_1", 4096)
    for longer in ({"longest_seconds": 0.97}, {"longest_characters": 99}):
        monkeypatch.setattr(worst_case, "find", lambda *_, of=longer: replace(case, **of))
        assert calibrations.calibrate("b_0_1") == 0
        assert "(measured)" in capfd.readouterr().err

    assert calibrations.calibrate("b_0_1", "--max-memory-gb", "0.01", start=1) == 1
    log = capfd.readouterr().err
    assert "a batch of 1 does not fit" in log


def test_what_a_trial_is_asked(calibrations, scripted):
    """The longest audio and the longest transcripts of the bucket, as many as there are rows."""
    assert calibrations.calibrate("b_1_2", "--grad-acc=2", "--world-size=3", soak=7) == 0
    device, first, last, soak = scripted.requests
    assert device == {"kind": "device", "device": "cpu"}
    assert first["options"]["num_workers"] == 0
    assert first["settings"]["grad_acc"] == 2 and first["settings"]["precision"] == "32-true"
    assert (first["kind"], first["rows"], first["steps"], first["world_size"]) == ("worst", 8, 2, 3)
    assert (first["audio_rows"][0], first["text_rows"][0]) == (158, 150)
    assert sorted(first["audio_rows"]) == sorted(first["text_rows"]) == [*range(150, 159)]
    assert last["rows"] == 9 and last["limit_gb"] == 10.0
    assert (soak["kind"], soak["rows"], soak["steps"], soak["bucket"]) == ("soak", 9, 7, 1)


@pytest.mark.parametrize(
    "flags, message",
    [
        (["--bucket", "b_9"], "there is no bucket 'b_9'"),
        (["--bucket", ""], "--bucket: no bucket was named. Name one, or take --mode verify_all"),
        (["--max_memory_gb", "2e6"], "2e+06 GB is more than a device has"),
        (["--max_memory_gb", "-1"], "max_memory_gb must be"),
        (["--steps", "1"], "steps must be at least 2"),
        (["--min_bs", "5000"], "min_bs must be at most max_bs"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(calibrations, scripted, capfd, flags, message):
    assert calibrations.calibrate("b_0_1", *flags) == 1
    log = capfd.readouterr().err
    assert message in log and "Traceback" not in log
    assert not calibrations.output("b_0_1").exists() and scripted.rows() == []


def test_ranks_of_a_launcher_do_not_calibrate(calibrations, scripted, capfd, monkeypatch):
    ranks = {"RANK": 1, "LOCAL_RANK": 1, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2}
    for name, value in ranks.items():
        monkeypatch.setenv(name, str(value))
    assert calibrations.calibrate("b_0_1") == 1
    assert "calibrated by one process, not by several ranks" in capfd.readouterr().err


def test_what_a_trial_refuses_is_said_in_one_line(calibrations, in_forks, capfd):
    assert calibrations.calibrate("b_0_1", "--model_path", "/nowhere") == 1
    log = capfd.readouterr().err
    assert "/nowhere" in log and "Traceback" not in log


@pytest.mark.parametrize("device", ["h200", "tpu"])
def test_another_machines_device_is_refused_by_name(calibrations, capfd, device):
    with pytest.raises(SystemExit):
        calibrations.calibrate("b_0_1", "--device", device)
    assert f"invalid choice: '{device}'" in capfd.readouterr().err


def test_a_bucket_without_rows_is_no_error(calibrations, scripted, capfd):
    """The rules know the buckets by their edges, before anything is in them."""
    assert calibrations.calibrate("b_2_3") == 0
    assert "b_2_3 has no rows" in capfd.readouterr().err
    assert calibrations.found("b_2_3") == {"bucket": "b_2_3", "empty": True}
    assert scripted.requests == []
