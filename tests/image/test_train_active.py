"""Training beside a producer: the commands as typed, their end, lines, kills, colours, refusals."""

from __future__ import annotations

import multiprocessing
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import orjson
import pytest
import torch

from millrace.common import atomic, cli, jsonl
from millrace.common.errors import MillraceError
from millrace.common.ledger import Ledger
from millrace.common.stopping import REQUEUE_EXIT_CODE
from millrace.common.training import run_folder
from millrace.image import status, train_active
from millrace.image.producer.sentry import Pointers
from millrace.image.records.record_file import multiset_digest
from millrace.image.records.record_set import RecordSet, file_name
from millrace.image.training import run
from tests import forks
from tests.image.record_sets import write_records
from tests.refusals import refused

RECORDS, FILES = 120, 6
FORK = multiprocessing.get_context("fork")
TIMES = ["--beat=0.1", "--wait-limit=600"]
SMALL = [
    "-a",
    "resnet_small",
    "-b",
    "24",
    "--lr",
    "0.02",
    "--augment",
    "none",
    "--device",
    "cpu",
    *TIMES,
]


@pytest.fixture(autouse=True)
def one_thread():
    """As the rules set it; forked children then need no thread pool of their parent."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def write_colours(root: Path, split: str, records: int, files: int, swapped: bool = False) -> None:
    """Images of 8 x 8 noise: class 0 has more red, class 1 as much more blue; nothing else
    differs."""
    draw, parts = np.random.default_rng(len(split)), []
    labels = draw.permutation(records) % 2
    images = draw.integers(60, 190, (records, 8, 8, 1), np.uint8).repeat(3, axis=3)
    for label, channel in ((0, 0), (1, 2)):
        images[labels == label, ..., 2 - channel if swapped else channel] += 60
    for number, ids in enumerate(np.array_split(np.arange(records), files)):
        path = root / split / file_name(split, number, files)
        parts.append(write_records(path, images[ids], labels[ids], ids))
    digest, counts = multiset_digest([np.arange(records)]), np.bincount(labels).tolist()
    RecordSet(
        root / split, split, ["blue", "red"], parts, counts, size=(8, 8), ids_digest=digest
    ).write()


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    root = tmp_path_factory.mktemp("written")
    write_colours(root, "train", RECORDS, FILES)
    write_colours(root, "val", 31, 2)
    return root


@pytest.fixture
def data(written, tmp_path):
    return shutil.copytree(written, tmp_path / "data")


def producer(data: Path, *flags: str) -> subprocess.Popen:
    command = [sys.executable, "-m", "millrace.image.create_epochs", f"--raw_data_dir={data}"]
    command += [f"--local_scratch_dir={data}", "--shuffle_pool=4", *flags, *TIMES]
    return subprocess.Popen(command)


def start_later(data: Path, sides: list[subprocess.Popen]) -> None:
    """Start a producer when the trainer waits for it."""
    while (
        beat := Pointers(data).beat("trainer")
    ) is None or "waits for epoch 1" not in beat.activity:
        time.sleep(0.05)
    sides.append(producer(data))


def lines(run: Path, event: str) -> list[dict]:
    rows = [orjson.loads(line) for line in (run / "metrics.jsonl").read_bytes().splitlines()]
    return [row for row in rows if row["event"] == event]


def epochs(run: Path) -> list[int]:
    """Those that a run has done."""
    return [row["epoch"] for row in lines(run, "epoch")]


def test_both_sides_come_to_their_end_if_the_trainer_starts_first(data, tmp_path, capsys):
    sides = []
    threading.Thread(target=start_later, args=(data, sides), daemon=True).start()
    run = tmp_path / "run"
    command = [*SMALL, "-j", "1", "--epochs", "5", "-p", "2", "--output-dir", str(run), str(data)]
    command += ["--report", str(tmp_path / "page.html")]
    assert train_active.main(command) == 0
    assert sides[0].wait(600) == 0

    assert not list(data.glob("train_*"))
    assert [row["epoch_samples"] for row in lines(run, "epoch")] == [RECORDS] * 5
    trained = lines(run, "train")
    assert sum(row["counts"]["samples"] for row in trained) == trained[-1]["samples"] == 5 * RECORDS
    assert len(lines(run, "eval")) == 5
    # With another one of these it would be another run.
    assert sorted(orjson.loads((run / "run.json").read_bytes())["run"]) == [
        *("arch", "augment", "batch_size", "data", "decay_epochs", "lr"),
        *("momentum", "precision", "seed", "weight_decay"),
    ]
    log = capsys.readouterr().err
    assert len(re.findall(r"held-out loss \S+, acc1 \S+, acc5 100, images 31", log)) == 5
    assert "waiting for epoch 1" in log and "start millrace.image.create_epochs" in log
    summary = jsonl.read(run / "metrics.json")
    assert summary["best"]["acc1"] == max(row["metrics"]["acc1"] for row in lines(run, "eval"))
    assert {path.name for path in (run / "checkpoints").iterdir()} > {"best", "last"}
    assert summary["records"] == RECORDS
    assert "Best top-1" in (tmp_path / "page.html").read_text()


def test_red_against_blue_is_learnt_resumed_from_and_all_wrong_with_swapped_channels(
    data, tmp_path
):
    run = tmp_path / "run"
    command = [*SMALL, "-j", "0", str(data), "--producer", "child", "--output-dir", str(run)]
    ledger = Ledger("create_records", "train", "image", warnings={"also_in_val": 2})
    atomic.write_json(data / "train/ledger.json", ledger.as_dict())
    assert train_active.main([*command, "--epochs", "2"]) == 0
    page = (run / "report.html").read_text()
    assert "2 images of train that are also in val: kept." in page
    assert train_active.main([*command, "--epochs", "3"]) == 0
    assert epochs(run) == [0, 1, 2]
    assert [row["metrics"]["acc1"] for row in lines(run, "eval")[1:]] == [100, 100]

    # Other images of val are another run.
    write_colours(data, "val", 31, 2, swapped=True)
    assert train_active.main([*command, "--epochs", "3"]) == 0
    assert epochs(run) == [0, 1, 2]
    figures = lines(run, "eval")[-1]["metrics"]
    assert (figures["acc1"], figures["acc5"]) == (0, 100)


@pytest.mark.long
def test_each_record_is_consumed_once_an_epoch_by_two_ranks_whoever_is_killed(data, tmp_path):
    run = tmp_path / "run"
    command = [*SMALL, "-j", "2", "--epochs", "4", "--save-steps", "2", "--log-ids", "1"]
    command += ["--output-dir", str(run), str(data)]
    log, side = run / "sample_ids.0.jsonl", producer(data)
    while Pointers(data).beat("producer") is None:  # it waits for a trainer
        time.sleep(0.02)
    for lines_written, killed in ((4, "rank and producer"), (11, "producer")):
        ranks = forks.start_ranks(2, lambda: train_active.main(command), tmp_path / "errors")
        while not log.exists() or log.read_bytes().count(b"\n") < lines_written:
            assert all(process.is_alive() for process in ranks)
            time.sleep(0.002)
        for process in [side, *(ranks[1:] if killed != "producer" else ())]:
            os.kill(process.pid, signal.SIGKILL)
        side.wait()
        side = producer(data)  # the trainer waits for it
        for process in ranks:
            process.join(600)
        assert (ranks[0].exitcode == 0) == (killed == "producer")
    assert side.wait(600) == 0 and not list(data.glob("train_*"))
    logs = [(run / f"sample_ids.{rank}.jsonl").read_bytes() for rank in range(2)]
    read = [orjson.loads(line) for log in logs for line in log.splitlines()]
    for epoch in range(4):
        ids = [number for row in read if row["epoch"] == epoch for number in row["ids"]]
        assert sorted(ids) == list(range(RECORDS)), f"epoch {epoch}"


def test_sigterm_ends_trainer_and_child_in_order_and_the_same_command_goes_on(data, tmp_path):
    run = tmp_path / "run"
    command = [*SMALL, "-j", "1", "--epochs", "40", "--producer", "child"]
    command += ["--output-dir", str(run), str(data)]
    child = FORK.Process(target=lambda: sys.exit(train_active.main(command)))
    child.start()

    def is_trained() -> bool:
        return (run / "metrics.jsonl").exists() and bool(lines(run, "epoch"))

    while not (is_trained() and Pointers(data).beat("producer")):
        assert child.is_alive()
        time.sleep(0.01)
    os.kill(child.pid, signal.SIGTERM)
    child.join(600)
    assert child.exitcode == REQUEUE_EXIT_CODE
    sides = [Pointers(data).beat(side) for side in ("trainer", "producer")]
    assert [side.is_working for side in sides] == [False, False]
    assert "was stopped" in sides[0].activity and not list(data.glob(".train_*"))
    done = len(epochs(run))
    command[command.index("40")] = str(done + 2)
    assert train_active.main(command) == 0
    assert epochs(run) == list(range(done + 2))


def test_a_run_is_told_by_its_first_last_and_best_accuracy(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(status, "partition_files", lambda lane: [])
    names = ("first_evaluation", "last_evaluation", "best")
    accuracies = {name: {"acc1": acc1} for name, acc1 in zip(names, (10, 30, 40), strict=True)}
    metrics = "results/image/runs/a/metrics.json"
    atomic.write_json(metrics, {**accuracies, "epochs": 2, "seconds": 60})
    line = "run a: val top-1 10.0 % -> 30.0 % (best 40.0 %), 2 epochs in 0:01:00"
    assert status.facts() == {metrics: line}


def test_flags_reach_the_run_and_its_producer(tmp_path, monkeypatch):
    given = []
    monkeypatch.setattr(run, "run", lambda *arguments: given.append(arguments))
    flags = "--producer child --seed 9 --shuffle-pool 3 --allowed-ahead 2 --threads 2 --beat 3"
    metrics = tmp_path / "run" / "metrics.json"
    common = [*flags.split(), "--metrics", str(metrics)]
    for scratch in ([], ["--local-scratch-dir", "S"]):
        assert train_active.main([*common, *scratch, "D"]) == 0
    assert torch.get_num_threads() == 2
    for (options, root, side, folder, producer), scratch in zip(given, ("D", "S"), strict=True):
        assert (options.seed, root, Path(side.folder), folder) == (
            *(9, Path("D"), Path(scratch)),
            metrics.parent,
        )
        assert set(producer) >= {"--raw_data_dir=D", f"--local_scratch_dir={scratch}"}
        assert set(producer) >= {"--seed=9", "--shuffle_pool=3", "--allowed_ahead=2", "--beat=3.0"}

    assert train_active.main(["-a", "resnet50", "D"]) == 0
    assert given[-1][3:] == (Path("resnet50"), [])


def test_a_folder_that_another_run_holds_is_refused(data, tmp_path, monkeypatch):
    def held(folder: Path) -> None:
        raise MillraceError("another process is training here", str(folder))

    monkeypatch.setattr(run_folder, "held", held)
    command = [*SMALL, "--epochs", "1", "--output-dir", str(tmp_path / "run"), str(data)]
    assert train_active.main(command) == 1
    assert not (tmp_path / "run").exists()


def test_a_producer_that_has_failed_ends_the_training_beside_it():
    words = r"the producer \(pid \d+\) has ended with 2.*the same command goes on"
    with refused(words), run.producing(["--no-such-flag"]) as check:
        while True:
            check()
            time.sleep(0.1)


def test_a_producer_that_a_signal_ends_before_it_listens_has_not_failed(monkeypatch):
    started: list[subprocess.Popen] = []
    start = subprocess.Popen

    def popen(command: list[str]) -> subprocess.Popen:
        started.append(start(["sleep", "60"]))  # as long as it takes to listen
        return started[0]

    monkeypatch.setattr(subprocess, "Popen", popen)
    with run.producing([]) as check:
        started[0].terminate()
        assert started[0].wait() == -signal.SIGTERM
        check()


@pytest.mark.parametrize(
    "typed, expected",
    [
        (
            "-a resnet50 -j 1 --epochs 5 D",
            {"arch": "resnet50", "workers": 1, "epochs": 5, "producer": "none"},
        ),
        (
            "D",
            {
                "arch": "resnet18",
                "workers": 4,
                "epochs": 90,
                "batch_size": 256,
                "lr": 0.1,
                "momentum": 0.9,
            },
        ),
        ("D", {"weight_decay": 1e-4, "print_freq": 10, "decay_epochs": 30, "data": "D"}),
        (
            "-b 8 --wd 1e-3 -p 3 --learning_rate=0.2 D",
            {"batch_size": 8, "weight_decay": 1e-3, "lr": 0.2},
        ),
    ],
)
def test_flags_are_those_of_pytorchs_imagenet_example_as_typed_there(typed, expected):
    args = vars(train_active.make_parser().parse_args(cli.hyphenated(shlex.split(typed))))
    assert {name: args[name] for name in expected} == expected


@pytest.mark.parametrize(
    "flags, words",
    [
        *(("--" + name, "launch --standalone") for name in ("gpu 0", "world-size=2", "rank 0")),
        *(("--" + name, "torchrun") for name in ("dist_url=tcp", "multiprocessing-distributed")),
        ("--pretrained", "no model is downloaded. Leave it out\n"),
        ("--resume x", "--resume is not taken. A run goes on"),
        ("--evaluate", "Each epoch is evaluated"),
        ("--start-epoch 2", "--start-epoch is not taken. A run goes on from its newest"),
    ],
)
def test_what_cannot_be_is_refused_with_the_remedy(data, tmp_path, capsys, flags, words):
    command = [*SMALL, "--output-dir", str(tmp_path / "run"), *flags.split(), str(data)]
    assert train_active.main(command) == 1
    assert words in capsys.readouterr().err.splitlines(keepends=True)[-1]
