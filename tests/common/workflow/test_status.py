"""Where a workflow stands, read off made folders: states by times of files, the screen, the closing
lines."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millrace.common import processes
from millrace.common.ledger import Ledger
from millrace.common.workflow import status
from millrace.common.workflow.status import Run

NOW = 1_000_000.0
ID = "malta-train-1-00000"
SOURCE = f"results/speech/partitions/{ID}.json"
INDEX = "results/speech/partitions/index/partitions.json"
OUTPUT = f"results/speech/shards/partitions/{ID}/index.parquet"
LOG, BENCHMARK = f"logs/speech/create_shards/{ID}.log", f"benchmarks/speech/create_shards/{ID}.tsv"
MARK = f".snakemake/incomplete/{base64.urlsafe_b64encode(OUTPUT.encode()).decode()}"
GOING_ON, KILLED, FAILED = (
    Run(state, started=NOW - 9000) for state in ("going on", "killed", "failed")
)
LATE = Run("going on", started=NOW - 100)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """One partition of one recording, in the current folder."""
    monkeypatch.chdir(tmp_path)
    write(INDEX, 10_000, {"partitions": {"malta": [ID]}, "files": {}})
    write("results/speech/partitions/countries/malta.json", 10_000, {"recordings": 1})
    write(SOURCE, 8000)
    return tmp_path


def write(path: str, age: float, content: str | dict | list = "") -> None:
    """Write a file of `age` seconds before NOW."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    Path(path).write_text(content if isinstance(content, str) else json.dumps(content))
    os.utime(path, (NOW - age, NOW - age))


REPORT = "snakemake speech -s ../Snakefile --report report.html"


def ended(
    lane: str, since: float, failed: bool = False, logs: list[str] | None = None
) -> list[str]:
    """The closing lines of a run of one lane."""
    run = status.Ended([lane], since, failed, logs or [], REPORT)
    return status.closing_lines(run)


def jobs(run: Run) -> dict[str, status.Job]:
    return {job.step: job for job in status.jobs_of("speech", run, NOW)}


@pytest.mark.parametrize(
    "run, ages, state",
    [
        (FAILED, {}, "pending"),
        (FAILED, {OUTPUT: 10, LOG: 11, BENCHMARK: 9}, "done"),
        (FAILED, {OUTPUT: 8000}, "done"),  # of the same time as its source
        (
            FAILED,
            {OUTPUT: 8200, LOG: 8201, BENCHMARK: 8199},
            "pending",
        ),  # the recording has changed
        (FAILED, {LOG: 11}, "failed"),
        (FAILED, {LOG: 11, BENCHMARK: 9}, "pending"),  # it succeeded, and the output was deleted
        (FAILED, {LOG: 8200}, "pending"),  # it failed, and the recording has changed since
        (FAILED, {LOG: 5, MARK: 6}, "failed"),
        (GOING_ON, {LOG: 3000, MARK: 3001}, "running"),
        (GOING_ON, {LOG: 4000, MARK: 4001}, "failed"),  # killed on another host
        (GOING_ON, {MARK: 20}, "pending"),  # waits for the cluster
        (GOING_ON, {LOG: 9500, MARK: 9501, OUTPUT: 9490}, "pending"),  # a mark of an earlier run
        (
            KILLED,
            {LOG: 50, MARK: 51, OUTPUT: 50},
            "running",
        ),  # Snakemake was killed, its job goes on
        (KILLED, {LOG: 70, MARK: 71, OUTPUT: 70}, "failed"),
        (LATE, {LOG: 190, MARK: 191}, "failed"),  # of the run that was killed before this one
        (LATE, {LOG: 50, MARK: 101}, "running"),  # the clock of another host is a second late
    ],
)
def test_the_state_of_a_job_follows_from_its_files(run, ages, state):
    for path, age in ages.items():
        write(path, age)
    assert jobs(run)["create_shards"].state == state


PROGRESS = "0.05 of 0.13 h (38 %), 0:00:09 left, errors 0"


@pytest.mark.parametrize(
    "run, log, words",
    [
        (GOING_ON, f"10:00:00 INFO {ID}: {PROGRESS}\n10:00:01 WARNING x\n", PROGRESS),
        (GOING_ON, "10:00:00 INFO ctc: 0.6 million parameters\n", "ctc: 0.6 million parameters"),
        (GOING_ON, "", "nothing in the log"),
        (
            FAILED,
            "10:00:00 INFO a\n10:00:01 ERROR a.wav: cut. Mend it\n  list\n",
            "a.wav: cut. Mend it",
        ),
        (FAILED, f"10:00:00 ERROR a\n10:00:01 INFO {ID}: {PROGRESS}\n", "a"),
        (FAILED, "10:00:00 ERROR a\n10:00:01 WARNING b\n", "a"),
        (FAILED, "10:00:00 ERROR a\n10:00:01 ERROR b, so the job ends\n", "b, so the job ends"),
        (FAILED, "10:00:00 ERROR a\udcff.wav: cut\n", "a\N{REPLACEMENT CHARACTER}.wav: cut"),
        (FAILED, "10:00:00 ERROR a\n" + "  its traceback\n" * 1000, "a"),
        (FAILED, "Traceback\nKilled\n", "ended without an error message; last line: Killed"),
    ],
)
def test_a_log_says_how_far_a_job_is_or_why_it_failed(run, log, words):
    write(LOG, 1)
    Path(LOG).write_bytes(log.encode(errors="surrogateescape"))
    os.utime(LOG, (NOW - 1, NOW - 1))
    write(MARK, 2)
    assert jobs(run)["create_shards"].last_words() == words


HEAD = "SNAKEMAKE\n\nJob stats:\njob    count\ntotal      2\n\n"
DONE, HALF, END = (
    "2 of 2 steps (100%) done\n",
    "1 of 2 steps (50%) done\n",
    "Elapsed time: 0:01:00\n",
)


@pytest.mark.parametrize(
    "text, note, state",
    [
        (HEAD + DONE + END, "", "succeeded"),
        (HEAD + DONE + END, "1-0@elsewhere", "succeeded"),  # the lock is of the next one
        (HEAD + HALF + END, "", "failed"),
        (HEAD + END, "", "failed"),  # its first job failed
        (HEAD + HALF, "", "killed"),  # and unlocked since
        (HEAD + HALF, "1-0@{host}", "killed"),
        (HEAD + HALF, "1-0@elsewhere", "going on"),
        ("SNAKEMAKE\nNothing to be done\n", "", ""),
    ],
)
def test_the_last_run_went_as_its_log_and_lock_say(text, note, state):
    write(".snakemake/log/2026-11-21T235901.123456.snakemake.log", 0, text)
    if note:
        write(".snakemake/locks/0.output.lock", 0)
        write(f".snakemake/millrace.runs/{note.format(host=os.uname().nodename)}", 0)
    run = status.last_run()
    assert run.state == state
    if run.log is not None:
        assert run.started == time.mktime((2026, 11, 21, 23, 59, 1, 0, 0, -1))
        assert run.log.total == 2


def test_a_run_goes_on_while_it_lives_also_if_another_one_has_removed_its_lock():
    write(".snakemake/log/2026-11-21T235901.123456.snakemake.log", 0, HEAD + HALF)
    init = f"1-{processes.started(1)}@{os.uname().nodename}"
    write(f".snakemake/millrace.runs/{init}", 0)
    assert status.last_run().state == "going on"


def test_the_screen_names_items_jobs_failures_and_the_last_run(folder):
    write(".snakemake/log/2026-11-21T235901.123456.snakemake.log", 0, HEAD + HALF + END)
    write(f"results/speech/manifest/partitions/{ID}/manifest.parquet", 100, "x" * 1000)
    write(LOG, 50, "10:00:01 ERROR a.wav: cut\n")
    pq.write_table(pa.table({"duration_seconds": [1800.0, 900.0]}), "results/speech/index.parquet")
    total = {"rows_in": 3, "rows_out": 2, "rows_rejected": 1, "rejected": {"too_long": 1}}
    pair = {"recording": "italy/cut", "split": "train", "of_recording": "spain/whole"}
    pair |= {"of_split": "test", "offset": 4.2, "segments": 3}
    ledger = {"total": total, "countries": [{"left_out_copies": [pair]}, {}]}
    write("results/speech/ledger.json", 9000, ledger)
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    program = "import runpy, sys; runpy.run_module('millrace', run_name='__main__')"
    program += "; assert not {'pandas', 'torch'} & set(sys.modules)"
    command = [sys.executable, "-c", program, "status"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert (
        lines[0].startswith("run of 2026-11-21 23:59:01 failed, ")
        and "1 of 2 steps done" in lines[0]
    )
    assert lines[1] == "  log: .snakemake/log/2026-11-21T235901.123456.snakemake.log"
    assert lines[3:7] == [
        "speech",
        "  recordings: 1, countries: 1",
        (
            "  0.75 hours, 2 segments in shards, 1 rejected (1 too_long); italy/cut (train) repeats"
            " 3 segments of spain/whole (test), 4.2 s later there: left out of train"
        ),
        "                               done  pending  running   failed",
    ]
    assert "  generate_manifest               1        -        -        -" in lines
    assert "  create_shards                   -        -        -        1" in lines
    assert lines[-2:] == [f"  failed create_shards {ID}: a.wav: cut", f"    log: {LOG}"]
    assert before == {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


@pytest.mark.parametrize("room", ["logs", "results"])
def test_a_lane_is_on_the_screen_with_its_logs_or_with_its_results(room):
    write(f"{room}/image/x", 10)
    assert "image" in status.screen(NOW) and "music" not in status.screen(NOW)


def test_the_last_run_is_the_newest_that_had_jobs():
    times = {"2026-11-21T235901": DONE + END, "2026-11-22T000101": HALF + END}
    for moment, text in times.items():
        write(f".snakemake/log/{moment}.1.snakemake.log", 0, HEAD + text)
    write(".snakemake/log/2026-11-22T000201.1.snakemake.log", 0, "SNAKEMAKE\nNothing to be done\n")
    run = status.last_run()
    assert (run.state, run.log.done, run.log.total) == ("failed", 1, 2)
    assert "2026-11-22T000101" in run.log.path


def test_a_merge_is_pending_if_any_of_its_partitions_is_newer():
    other = ID.replace("train-1", "test")
    write(INDEX, 10_000, {"partitions": {"malta": [other, ID]}, "files": {}})
    write(f"results/speech/partitions/{other}.json", 100)
    write("results/speech/index.parquet", 7000)
    assert jobs(FAILED)["merge_index"].state == "pending"
    write(f"results/speech/partitions/{other}.json", 7100)
    assert jobs(FAILED)["merge_index"].state == "done"


def fail(count: int, first_age: int) -> list[str]:
    """Have so many jobs failed, the first one last; their ids."""
    ids = [f"malta-train-1-{number:05d}" for number in range(count)]
    write(INDEX, 10_000, {"partitions": {"malta": ids}, "files": {}})
    for age, name in enumerate(ids, first_age):
        write(f"logs/speech/create_shards/{name}.log", age, f"10:00:01 ERROR {name} is cut\n")
    return ids


def test_the_screen_lists_the_latest_failures():
    ids = fail(7, 50)
    failed = [line for line in status.screen(NOW) if line.startswith("  failed")]
    assert failed == [f"  failed create_shards {name}: {name} is cut" for name in ids[:5]]


def log_run(age: float, text: str) -> None:
    """Write the log of a run that began 9000 seconds before NOW."""
    begun = time.strftime("%Y-%m-%dT%H%M%S", time.localtime(NOW - 9000))
    write(f".snakemake/log/{begun}.1.snakemake.log", age, HEAD + text)


def test_the_screen_says_how_far_a_running_job_is():
    log_run(100, HALF)
    write(".snakemake/locks/0.output.lock", 0)
    write(".snakemake/millrace.runs/1-0@elsewhere", 0)
    write(LOG, 600, "10:00:00 INFO a\n")
    write(MARK, 700)
    lines = status.screen(NOW)
    assert lines[0].endswith(" going on, 2:30:00, 1 of 2 steps done")
    assert f"  running create_shards {ID}: a" in lines


def test_a_run_that_has_ended_took_until_its_log_was_written():
    log_run(9000 - 60, DONE + END)
    assert status.screen(NOW)[0].endswith(" succeeded, 0:01:00, 2 of 2 steps done")


def test_only_ten_failures_of_a_run_are_named_at_its_end():
    fail(13, 10)
    lines = ended("speech", NOW - 21.5, failed=True)
    assert len(lines) == 11 and lines[-1] == "failed: 2 more jobs"
    assert len(ended("speech", NOW - 19.5, failed=True)) == 10


def test_a_page_of_an_earlier_run_is_not_opened():
    write("results/speech/report/summary.html", 100)
    assert ended("speech", NOW - 60) == []
    assert len(ended("speech", NOW - 120)) == 2


def test_closing_lines_that_cannot_be_made_fail_no_run_and_none_moves_the_cursor(
    monkeypatch, capsys
):
    monkeypatch.setattr(status.atexit, "register", lambda say: say())
    write("results/image/runs/demo/metrics.json", 50, {"first_evaluation": {}})
    status.say_last(status.Ended(["image"], NOW - 60, False, [], REPORT))
    assert capsys.readouterr().err.startswith("Millrace: no summary of the run: ")
    write(LOG, 50, "10:00:01 ERROR \x1b[2J.wav: cut\n")
    status.say_last(status.Ended(["speech"], NOW - 60, True, [], REPORT))
    assert r": \x1b[2J.wav: cut" in capsys.readouterr().err


def test_the_closing_lines_of_a_failed_run_name_its_jobs_and_logs():
    write(LOG, 50, "10:00:01 ERROR a.wav: cut\n")
    failed = ended("speech", NOW - 60, failed=True, logs=["run.log"])
    assert failed == [f"failed: speech_create_shards {ID}: a.wav: cut (log: {LOG})"]
    earlier = ended("speech", NOW - 40, failed=True, logs=["run.log"])
    assert earlier == ["failed: no step says why, see run.log"]


@pytest.mark.parametrize(
    "rejects, rejected",
    [
        (
            {
                "dev": {"tar_missing": 1},
                "train": {"contradicting_row": 2, "tar_missing": 1, "duration_nan": 1},
            },
            "5 rows rejected (2 tar_missing, 2 contradicting_row, 1 duration_nan)",
        ),
        ({"train": {"duplicate_row": 1}}, "1 row rejected (1 duplicate_row)"),
        ({"train": {}}, "no rows rejected"),
        ({}, "no ledger of rejected rows"),
    ],
)
def test_the_closing_lines_of_a_run_say_what_it_made(folder, rejects, rejected):
    buckets = [
        {"bucket_id": "b_3_5", "hours": 1.5, "samples": 9},
        {"bucket_id": "b_5_7", "samples": 0},
    ]
    config = {
        "buckets": buckets,
        "total_samples": 9,
        "total_hours": 1.5,
        "splits": {"dev": {"hours": 0.25}},
    }
    write("results/asr/buckets/bucket_config.json", 50, config)
    ledgers = [
        Ledger(
            "asr_build_bucket_manifests", split, "row", 12, 12 - sum(rejected.values()), rejected
        ).as_dict()
        for split, rejected in rejects.items()
    ]
    write("results/asr/buckets/ledger.json", 50, ledgers)
    rates = {
        "first_evaluation": {"wer": 1.0, "cer": 0.9},
        "last_evaluation": {"wer": 0.5, "cer": 0.25},
    }
    metrics = {**rates, "test": {"wer": 0.6}, "optimizer_steps": 600, "seconds": 228.0}
    for run in ("demo", "bench"):
        write(f"results/asr/runs/{run}/metrics.json", 40, metrics)
    write("results/asr/report/throughput.html", 30)
    assert ended("asr", NOW - 60) == [
        f"asr: 9 samples in buckets, {rejected}; hours: train 1.50, dev 0.25, b_3_5 1.50",
        (
            "asr: run demo: dev WER 1.000 -> 0.500, dev CER 0.900 -> 0.250, test WER 0.600, 600"
            " steps in 0:03:48"
        ),
        f"open {folder}/results/asr/report/throughput.html",
        f"all pages in one: {REPORT}",
    ]
    assert ended("asr", NOW) == []


def test_a_run_without_figures_is_said_too_and_one_that_is_called_like_a_measured_one():
    metrics = {"first_evaluation": None, "last_evaluation": None}
    metrics |= {"optimizer_steps": 1, "seconds": 60.0}
    write("results/asr/runs/check_lr/metrics.json", 10, metrics)
    write("results/music/runs/demo/metrics.json", 10, metrics)
    (line,) = ended("asr", NOW - 60)
    assert line == "asr: run check_lr: no error rates, 1 steps in 0:01:00"
    (line,) = ended("music", NOW - 60)
    assert line == "music: run demo: no figures on the valid split, 1 step in 0:01:00"


def test_leaks_are_said_with_what_was_made_of_the_rows():
    ledger = Ledger("step", "train", "image", 5, 2, {"also_in_val": 2, "unreadable": 1})
    leaks = "2 images of train that are also in val: rejected"
    write("results/image/partitions/index/partitions.json", 60, {"partitions": {"train": []}})
    records = {"classes": ["a", "b"], "files": [{}, {}, {}]}
    write("results/image/records/train/records.json", 10, records)
    write("results/image/records/train/ledger.json", 10, ledger.as_dict())
    (line,) = ended("image", NOW - 60)
    assert line == f"image: train: 2 records of 2 classes in 3 files, 3 rejected; {leaks}"

    config = {"buckets": [], "total_samples": 2, "total_hours": 0.5, "splits": {}}
    write("results/asr/buckets/bucket_config.json", 10, config)
    write("results/asr/buckets/ledger.json", 10, [ledger.as_dict()])
    (line,) = ended("asr", NOW - 60)
    assert f" 1 unreadable); {leaks}; hours: " in line

    coverage = {"tracks": 1234, "splits": [{"line": "train: all"}], "hop_note": "hop 0.02"}
    write("results/music/index/coverage.json", 10, coverage | {"leak_lines": [leaks]})
    (line,) = ended("music", NOW - 60)
    assert line == f"music: 1,234 tracks in the index; train: all; hop 0.02; {leaks}"


def test_the_verdicts_on_a_loader_are_said_by_lane_and_run():
    write("results/audit/asr/a/accepted.json", 10, {"counts": {"pass": 5, "fail": 0}})
    write("results/audit/asr/b/accepted.json", 10, {"counts": {}})
    assert ended("audit", NOW - 60) == [
        "audit: loader of asr a: 5 pass",
        "audit: loader of asr b: not audited",
    ]


def test_rejects_of_a_corpus_are_said_by_their_number_and_two_of_its_repeats():
    write("results/speech/index.parquet", 10)
    pq.write_table(pa.table({"duration_seconds": [1800.0]}), "results/speech/index.parquet")
    rejected = {"no_text": 1, "too_long": 5, "cut": 1}
    pair = {"recording": "italy/cut", "split": "train", "of_recording": "spain/whole"}
    pair |= {"of_split": "test", "offset": 0.0, "segments": 3}
    for repeats, end in ((2, "left out of train"), (3, "; and 1 more pairs, see the report")):
        pairs = [{"left_out_copies": [pair] * repeats}]
        total = {"rows_in": 9, "rows_out": 2, "rows_rejected": 7, "rejected": rejected}
        write("results/speech/ledger.json", 10, {"total": total, "countries": pairs})
        (line,) = ended("speech", NOW - 60)
        assert (
            "0.50 hours, 2 segments in shards, 7 rejected (5 too_long, 1 cut, 1 no_text);" in line
        )
        assert line.count("italy/cut") == 2 and line.endswith(end)


@pytest.mark.parametrize("tars", [{}, {"tars": ["a"]}])
def test_buckets_are_pending_while_a_partition_of_speech_or_of_tars_is_newer(tars):
    write("results/asr/partitions/index/partitions.json", 900, {"partitions": tars, "files": {}})
    newer = "results/asr/partitions/a.json" if tars else SOURCE
    write(newer, 200)
    write("results/speech/index.parquet", 200)
    write("results/asr/buckets/bucket_config.json", 100)

    def state() -> str:
        jobs_of_asr = {job.step: job for job in status.jobs_of("asr", FAILED, NOW)}
        return jobs_of_asr["build_bucket_manifests"].state

    assert state() == "done"
    write(newer, 50)
    assert state() == "pending"


def test_the_closing_lines_of_music_say_figures_of_the_same_split_before_and_after(folder):
    metrics = {
        "first_evaluation": {"valid/m_MAP": 0.31, "valid/m_ARP": 40.2},
        "last_evaluation": {"valid/m_MAP": 0.75, "valid/m_ARP": 12.3},
        "optimizer_steps": 48,
        "seconds": 31.0,
    }
    write("results/music/runs/demo/metrics.json", 50, metrics)
    test = {"figures": {"m_MAP": 0.701, "m_ARP": 14.04}}
    write("results/music/runs/demo/test.json", 40, test)
    assert ended("music", NOW - 45) == ["music: run demo: test MAP 0.701, NAR 14.0 %"]
    write("results/music/report/training.html", 30)
    assert ended("music", NOW - 60) == [
        "music: run demo: valid MAP 0.310 -> 0.750, valid NAR (%) 40.2 -> 12.3,"
        " 48 steps in 0:00:31",
        "music: run demo: test MAP 0.701, NAR 14.0 %",
        f"open {folder}/results/music/report/training.html",
        f"all pages in one: {REPORT}",
    ]


def test_the_closing_lines_of_images_say_figures_of_the_same_split_before_and_after(folder):
    metrics = {
        "first_evaluation": {"acc1": 61.11},
        "last_evaluation": {"acc1": 98.0},
        "best": {"acc1": 98.3},
        "epochs": 1,
        "seconds": 62.0,
    }
    write("results/image/runs/demo/metrics.json", 50, metrics)
    write("results/image/runs/demo/report.html", 50)
    write("results/image/runs/older/report.html", 500)
    assert ended("image", NOW - 60) == [
        "image: run demo: val top-1 61.1 % -> 98.0 % (best 98.3 %), 1 epoch in 0:01:02",
        f"open {folder}/results/image/runs/demo/report.html",
        f"all pages in one: {REPORT}",
    ]
