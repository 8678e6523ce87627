"""Training on real tars, as the rule runs it: kills, ranks, resumes, and a run that is another
one."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path

import numpy as np
import psutil
import pytest

from millrace.asr import train_model
from millrace.asr.buckets import eval_file
from millrace.asr.buckets.config import BucketConfig
from millrace.asr.loading.row_table import RowTable
from millrace.common import jsonl
from millrace.common.stopping import REQUEUE_EXIT_CODE
from tests import forks
from tests.asr import audio_tars
from tests.asr.bucket_corpus import build_from, corpus, write_manifest
from tests.refusals import refused

ROOT = Path(__file__).resolve().parents[2]
# Small and quick; dropout on, so that the generators' state counts.
SIZES = '{"hidden": 16, "channels": 4}'
MODEL = ["--model-options", SIZES, "--batch-seconds=0.6", "--lr=1e-3"]
# Both spellings of the flags that the original script has.
COMMON = ["--log_steps=1", "--save-steps", "2", "--log-ids=1", "--tensorboard=0", "--num_workers=1"]


@pytest.fixture(scope="module")
def buckets(tmp_path_factory):
    return audio_tars.corpus(tmp_path_factory.mktemp("train"), tars=3, members=20)


def flags(buckets: Path, run: Path, *more: str) -> list[str]:
    places = [f"--bucket-dir={buckets}", f"--metrics={run}/metrics.json"]
    return [*places, *MODEL, *COMMON, *more]


def train(buckets: Path, run: Path, *more: str, ranks: int = 1) -> dict:
    """In processes of their own, as the tasks of an srun."""
    started = start(buckets, run, *more, ranks=ranks)
    assert set(forks.joined(started)) == {0}, errors(run)
    return jsonl.read(run / "metrics.json")


def start(buckets: Path, run: Path, *more: str, ranks: int = 1) -> list[BaseProcess]:
    arguments = flags(buckets, run, *more)
    return forks.start_ranks(ranks, lambda: train_model.main(arguments), _errors_of(run))


def errors(run: Path) -> str:
    return _errors_of(run).read_text()


def _errors_of(run: Path) -> Path:
    """Beside the folder, which a run takes for its own."""
    return run.with_name(f"{run.name}.stderr")


def train_here(buckets: Path, run: Path, *more: str) -> dict:
    """In this process, which has loaded torch already."""
    assert train_model.main(flags(buckets, run, *more)) == 0
    return jsonl.read(run / "metrics.json")


def losses(run: Path) -> list[tuple[int, float]]:
    rows = jsonl.whole_lines(run / "metrics.jsonl")
    return [(row["step"], row["loss"]) for row in rows if row["event"] == "train"]


def ids(run: Path) -> Counter:
    """Sample ids of the first epoch over all ranks."""
    seen = Counter()
    for path in run.glob("sample_ids.*.jsonl"):
        for row in jsonl.whole_lines(path):
            if row["epoch"] == 0:
                seen.update(row["ids"])
    return seen


def all_ids(buckets: Path) -> set[int]:
    table = RowTable.open(buckets)
    return {row.sample_id for row in table.rows(np.arange(len(table)))}


def wait_for_step(step: int, run: Path, is_running: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not (run / "metrics.jsonl").exists() or len(losses(run)) < step:
        assert is_running() and time.monotonic() < deadline, f"no step {step}"
        time.sleep(0.02)


def start_and_kill(step: int, buckets: Path, run: Path, *more: str, ranks: int = 1) -> None:
    """Train, and kill it with all its processes when `step` is logged."""
    started = start(buckets, run, *more, ranks=ranks)
    wait_for_step(step, run, lambda: all(process.is_alive() for process in started))
    for process in started:
        os.killpg(process.pid, signal.SIGKILL)
    assert set(forks.joined(started)) == {-signal.SIGKILL}


def kill_a_worker(trainers: list[psutil.Process]) -> int:
    """A worker is a fork: it has its trainer's command line."""
    family = [*trainers]
    for trainer in trainers:
        family += trainer.children(recursive=True)
    lines = {process.pid: process.cmdline() for process in family}
    worker = next(each for each in family if lines.get(each.ppid()) == lines[each.pid])
    worker.kill()
    return worker.pid


def lines_about(worker: int, text: str) -> list[str]:
    """The lines of errors, of which one names the worker.

    Its connection may break before the kernel reports its death: then torch knows no signal.
    """
    assert "Traceback" not in text
    (line,) = (line for line in text.splitlines() if "loader worker" in line)
    ends = "(was killed by SIGKILL|ended unexpectedly)"
    assert re.search(rf"ERROR a loader worker \(pid {worker}\) {ends}\. ", line)
    assert "num_workers" in line
    return [line for line in text.splitlines() if "ERROR" in line]


def test_a_killed_worker_ends_the_run_in_one_line(buckets, tmp_path):
    (trainer,) = start(buckets, tmp_path, "--epochs=1000")
    wait_for_step(2, tmp_path, trainer.is_alive)
    worker = kill_a_worker([psutil.Process(trainer.pid)])
    assert forks.joined([trainer]) == [1]
    text = errors(tmp_path)
    assert len(lines_about(worker, text)) == 1
    assert " steps on 1 rank, padding" in text


@pytest.mark.long
def test_a_killed_worker_of_two_ranks_ends_all_of_them(buckets, tmp_path):
    """As the rule starts them, by the launcher."""
    launcher = "-m millrace.common.training.launch --standalone --nproc-per-node 2"
    command = [sys.executable, *f"{launcher} -m millrace.asr.train_model".split()]
    command += flags(buckets, tmp_path, "--epochs=1000")
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}/scripts:{ROOT}", "OMP_NUM_THREADS": "1"}
    running = subprocess.Popen(
        command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True
    )
    wait_for_step(2, tmp_path, lambda: running.poll() is None)
    worker = kill_a_worker([psutil.Process(running.pid)])
    text = running.communicate(timeout=100)[1]
    assert running.returncode == 1
    assert len(lines_about(worker, text)) == 3, (
        "and a rank that lost the other one, and the launcher"
    )
    # What all ranks would say alike is said once.
    assert text.count("million parameters") == 1 and text.count("epoch 0: ") == 1
    assert " steps on 2 ranks, padding" in text


@pytest.fixture(scope="module")
def undisturbed(buckets, tmp_path_factory):
    run = tmp_path_factory.mktemp("undisturbed")
    return run, train(buckets, run, "--epochs=2")


def test_a_run_trains_evaluates_and_saves(undisturbed, buckets):
    run, metrics = undisturbed
    assert metrics["epochs"] == 2 and metrics["samples"] == 2 * len(all_ids(buckets))
    assert ids(run) == Counter(all_ids(buckets))
    assert (run / "model/config.json").exists() and (run / "throughput.json").exists()
    lines = jsonl.whole_lines(run / "metrics.jsonl")
    counted = [line["counts"]["samples"] for line in lines if line["event"] == "train"]
    assert sum(counted) == metrics["samples"]
    steps = losses(run)
    assert [step for step, _ in steps] == list(range(1, metrics["optimizer_steps"] + 1))


def test_killed_and_resumed_it_is_the_same_run_bit_for_bit(undisturbed, buckets, tmp_path):
    run, _ = undisturbed
    for step in (3, 8):
        start_and_kill(step, buckets, tmp_path, "--epochs=2")
    train(buckets, tmp_path, "--epochs=2")
    assert losses(tmp_path) == losses(run) and ids(tmp_path) == ids(run)


def test_three_ranks_see_every_sample_once_and_one_rank_takes_over(buckets, tmp_path):
    start_and_kill(3, buckets, tmp_path, "--epochs=1", ranks=3)
    train(buckets, tmp_path, "--epochs=1", "--num_workers=0")
    rows = jsonl.whole_lines(tmp_path / "metrics.jsonl")
    assert {row["world_size"] for row in rows if row["event"] == "train"} == {3, 1}
    assert ids(tmp_path) == Counter(all_ids(buckets))


def test_two_ranks_end_with_the_same_weights_and_all_samples(buckets, tmp_path):
    # The loop itself compares the weights of the ranks at the end, and fails where they differ.
    metrics = train(buckets, tmp_path, "--epochs=1", ranks=2)
    assert metrics["ranks"] == 2 and ids(tmp_path) == Counter(all_ids(buckets))


def test_a_profile_names_the_parts_of_qwen_and_the_end_promises_no_model(buckets, tmp_path, capfd):
    flags = [f"--bucket-dir={buckets}", f"--metrics={tmp_path}/metrics.json"]
    flags += ["--model=qwen3-asr-tiny", "--max-steps=5", "--profile_steps=2", "--num-workers=0"]
    flags += ["--batch-seconds=2", "--tensorboard=0", "--save-steps=0", "--language_tag_mode=none"]
    assert train_model.main(flags) == 0
    options = jsonl.read(tmp_path / "run.json")["run"]["model_options"]
    assert options == {"language_tag_mode": "none"}
    assert capfd.readouterr().err.endswith("5 steps done; metrics.json, but no model, is there\n")
    assert (tmp_path / "trace.json.gz").exists() and not (tmp_path / "model").exists()
    assert not list(tmp_path.glob("checkpoints/*"))
    phases = jsonl.read(tmp_path / "profile.json")["phases"]
    seconds = {row["phase"]: row["host_seconds"] for row in phases}
    parts = {name.removeprefix("forward: ") for name in seconds if ": " in name}
    assert parts == {"mel", "audio encoder", "text decoder", "head"}
    assert 0 < sum(seconds[f"forward: {part}"] for part in parts) <= seconds["forward"]


def test_a_changed_setting_begins_a_new_run_and_keeps_the_old(buckets, tmp_path):
    train_here(buckets, tmp_path, "--max-steps=2")
    train_here(buckets, tmp_path, "--max-steps=3")
    assert [step for step, _ in losses(tmp_path)] == [1, 2, 3], "a longer run goes on"
    train_here(buckets, tmp_path, "--max-steps=2", "--lr=5e-4")
    assert [step for step, _ in losses(tmp_path)] == [1, 2]
    assert len(list((tmp_path / "previous").glob("*/checkpoints"))) == 1


def test_the_baseline_to_compare_with_trains_too(buckets, tmp_path):
    chosen = ["--loader=baseline", "--save-steps=0", "--profile=0", "--profile-steps=2"]
    # As nothing is saved, a longer one begins anew, and measures each step once.
    for steps in (2, 3):
        metrics = train(buckets, tmp_path, *chosen, f"--max-steps={steps}", ranks=2)
        assert metrics["loader"] == "baseline" and metrics["optimizer_steps"] == steps
        assert jsonl.read(tmp_path / "throughput.json")
        measured = [line["step"] for line in jsonl.whole_lines(tmp_path / "steps.jsonl")]
        logged = [step for step, _ in losses(tmp_path)]
        assert measured == logged == list(range(1, steps + 1))
        # No gigabytes of a model that nobody wants.
        assert not list(tmp_path.glob("checkpoints/*")) and not (tmp_path / "model").exists()


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--model", "no/such"], "no/such"),
        (["--calibration=none.json"], "asr_calibrate"),
        (["--bucket_config=none.json"], "asr_calibrate"),  # as the original script spells it
        (["--lr", "-1"], "lr"),
    ],
)
def test_errors_are_one_line(buckets, tmp_path, capfd, arguments, message):
    assert train_model.main(flags(buckets, tmp_path, "--max-steps=1", *arguments)) == 1
    log = capfd.readouterr().err
    assert message in log and "Traceback" not in log


def test_the_help_names_the_code_on_which_slurm_requeues():
    assert f"code {REQUEUE_EXIT_CODE}" in " ".join(train_model.make_parser().format_help().split())


def test_grad_acc_of_a_flat_calibration_counts(buckets, tmp_path):
    """Of the buckets' 1 and 5, of as many rows each: 1.67 on average."""
    sizes = zip(BucketConfig.read(buckets).ids, (1, 5), strict=True)
    flat = {name: {"batch_size": 4, "grad_acc": number} for name, number in sizes}
    (tmp_path / "calibrated_bs.json").write_text(json.dumps(flat))
    arguments = [f"--bucket_config={tmp_path}/calibrated_bs.json", "--max-steps=1"]
    train_here(buckets, tmp_path / "run", *arguments)
    assert jsonl.read(tmp_path / "run/run.json")["run"]["grad_acc"] == 2


def test_an_evaluation_file_is_a_split_of_buckets_or_the_manifest_it_was_made_of(tmp_path):
    rows, index = corpus(tmp_path, tars=2, members=8)
    manifest = write_manifest(tmp_path / "train.parquet", rows[8:])
    dev = write_manifest(tmp_path / "dev.parquet", rows[:8])
    one, two = tmp_path / "one", tmp_path / "two"
    for folder in (one, two):
        build_from(folder, index, train=manifest, dev=dev)
    assert eval_file.find(dev, one) == (one, "dev")
    assert eval_file.find(two / "dev.parquet", one) == (two, "dev")
    # By another path to it, too.
    (two / "link.parquet").symlink_to("dev.parquet")
    assert eval_file.find(two / "link.parquet", one) == (two, "dev")
    # With fewer rows, with more, and with as many others.
    for others in (rows[:5], rows[:12], rows[8:]):
        other = write_manifest(tmp_path / "other.parquet", others)
        words = f"its {len(others)} rows are not those of a split of"
        with refused(words):
            eval_file.find(other, one)
