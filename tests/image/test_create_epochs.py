"""create_epochs: the original's command, an orderly stop, and kills of either side."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from millrace.image import create_epochs
from millrace.image.producer import epochs
from millrace.image.producer.sentry import Pointers, Times, Trainer
from tests.image.producer.stand_in import (
    ROOT,
    FolderWatch,
    assert_each_record_once,
    run_with_kills,
    wait_for_epoch,
)
from tests.image.record_sets import write_set

KILLS = int(os.environ.get("MILLRACE_KILLS", "5"))
STEP = [sys.executable, "-m", "millrace.image.create_epochs"]
TIMES = ["--beat=0.1", "--wait-limit=120"]


@pytest.mark.parametrize("ahead", ["--allowed-ahead=2", "--allowed_ahead 2"])
def test_the_original_command_is_taken_as_typed(ahead):
    line = f"--raw_data_dir=/nfs/h5/ --local_scratch_dir=/nfs/h5/ --shuffle_pool=10 {ahead}"
    args = create_epochs.make_parser().parse_args(create_epochs.cli.hyphenated(line.split()))
    assert (args.raw_data_dir, args.local_scratch_dir) == ("/nfs/h5/", "/nfs/h5/")
    assert (args.shuffle_pool, args.allowed_ahead) == (10, 2)


def test_a_stop_exits_with_the_code_of_a_requeue_and_the_same_command_goes_on(tmp_path):
    write_set(tmp_path, [4, 4, 4])
    flags = [
        f"--raw_data_dir={tmp_path}/",
        f"--local_scratch_dir={tmp_path}",
        "--shuffle_pool=all",
        *TIMES,
    ]
    with Trainer(tmp_path, times=Times(beat=0.1)) as trainer:
        trainer.want(top=3)
        process = subprocess.Popen([*STEP, *flags], cwd=ROOT)
        wait_for_epoch(trainer, 1)
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 75
        beat = Pointers(tmp_path).beat("producer")
        assert not beat.is_working and beat.activity == "was stopped"
        trainer.trained(0)
        assert create_epochs.main(flags) == 0
        assert list(epochs.whole(tmp_path)) == [1, 2] and trainer.is_ready(2)


@pytest.mark.parametrize("is_child", [True, False])
def test_only_the_producer_of_a_trainer_ends_with_its_parent(monkeypatch, is_child):
    before = signal.getsignal(signal.SIGTERM)
    with create_epochs._stopping(end_with_parent=is_child) as is_stopped:
        assert not is_stopped()
        monkeypatch.setattr(os, "getppid", lambda: 1)
        assert is_stopped() == is_child
    assert signal.getsignal(signal.SIGTERM) is before


def test_no_kill_of_either_side_skips_or_repeats_a_record_or_shows_half_a_file(tmp_path):
    """The sides differ in paths, clocks and network; MILLRACE_KILLS=30 for more kills."""
    folder, mount, notes, top = (
        tmp_path / "records",
        tmp_path / "mount",
        tmp_path / "notes",
        4 * KILLS,
    )
    records = len(write_set(folder, [7, 6, 6] * 7))
    mount.mkdir()
    bind = [
        "unshare",
        "-rmn",
        "sh",
        "-c",
        'mount --bind "$0" "$1" && shift && exec "$@"',
        folder,
        mount,
    ]
    if subprocess.run([*bind, "true"], capture_output=True).returncode:
        mount.rmdir()
        mount.symlink_to(folder)
        bind = []
    trainer = [*bind, sys.executable, "-m", "tests.image.producer.stand_in", mount, notes, top, 0.3]
    producer = [
        *STEP,
        f"--raw_data_dir={folder}/",
        f"--local_scratch_dir={folder}",
        "--shuffle_pool=5",
        *TIMES,
    ]
    commands = {"trainer": list(map(str, trainer)), "producer": producer}
    with FolderWatch(folder) as watch:
        kills = run_with_kills(commands, KILLS, seed=12, log=tmp_path / "log")
    print(
        f"kills {kills}, {watch.samples} samples, at most {watch.most} folders, epochs"
        f" {sorted(watch.epochs)}"
    )
    assert sum(kills.values()) == KILLS and watch.most <= 2 and watch.epochs <= set(range(1, top))
    assert_each_record_once(notes, top, records)
    assert not epochs.whole(folder)
