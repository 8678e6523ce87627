"""The sentry: one writer a pointer, signs of life, waits that say for whom and what to start."""

from __future__ import annotations

import errno
import json
import logging
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from millrace.common import atomic
from millrace.common.errors import MillraceError
from millrace.common.stopping import REQUEUE_EXIT_CODE, Requeue
from millrace.image.producer import epochs, sentry
from millrace.image.producer.sentry import Beat, Times
from tests import forks
from tests.image.producer.stand_in import wait_for_epoch
from tests.refusals import refused

QUICK = Times(beat=0.02, wait_limit=0.5)
START = "start millrace.image."


def mark(folder, epoch, maker=epochs.MAKER):
    atomic.write_json(folder / f"train_{epoch}" / epochs.MARK, {"maker": maker, "epoch": epoch})


def leave_dead(folder, side):
    """What a side leaves that was killed at work."""
    (folder / "sentry").mkdir(exist_ok=True)
    beat = Beat(7, True, "node3, pid 9", "makes epoch 2")
    sentry.Pointers(folder).write(f"{side}.beat", beat)


def test_an_epoch_is_read_when_it_is_whole_and_announced_and_removed_when_all_are_trained(tmp_path):
    mark(tmp_path, 1)
    mark(tmp_path, 2, maker="somebody")
    with (
        sentry.Trainer(tmp_path, times=QUICK) as trainer,
        sentry.Producer(tmp_path, times=QUICK) as producer,
    ):
        trainer.want(top=2)
        assert trainer.is_ready(0) and not trainer.is_ready(1)
        producer.announce(
            1, attempt=0
        )  # of another start of the trainer: the folder may be removed yet
        assert not trainer.is_ready(1)
        producer.announce(1, producer.wanted().attempt)
        trainer.trained(0)
        assert producer.wanted().slow == 1
        with pytest.raises(ValueError, match="epoch 0 is not the one in work, 1"):
            trainer.trained(0)
        trainer.trained(1)
    assert not (tmp_path / "train_1").exists() and (tmp_path / "train_2").exists()
    assert not sentry.Pointers(tmp_path).beat("trainer").is_working


@pytest.mark.parametrize(
    "state, words",
    [
        ("missing", "no producer has started"),
        ("dead", "(node3, pid 9) makes epoch 2"),
        ("stopped", "was stopped"),
    ],
)
def test_a_wait_names_the_side_and_its_command_and_ends_after_the_limit(
    tmp_path, caplog, state, words
):
    caplog.set_level(logging.INFO, "millrace")
    if state == "dead":
        leave_dead(tmp_path, "producer")
    elif state == "stopped":
        with pytest.raises(KeyboardInterrupt), sentry.Producer(tmp_path, QUICK) as side:
            side.announce(0, 1)
            raise KeyboardInterrupt
    with sentry.Trainer(tmp_path, QUICK) as side:
        side.want(top=2)
        with pytest.raises(MillraceError) as error:
            wait_for_epoch(side, 1)
    assert words in str(error.value) and f"{START}create_epochs for this folder" in str(error.value)
    assert f"epoch 1 ({tmp_path}/train_1)" in str(error.value)
    said = [line for line in caplog.messages if words in line and START in line]
    assert len(said) == 1, caplog.messages  # not at every poll


def test_a_side_that_is_slow_is_waited_for_as_long_as_it_counts(tmp_path):
    class FullAtFirst(sentry.Producer):
        def write(self, name, value):
            if isinstance(value, Beat) and value.count == 2:
                raise OSError(errno.ENOSPC, "no space left")
            super().write(name, value)

    began = time.monotonic()
    with FullAtFirst(tmp_path, QUICK), sentry.Trainer(tmp_path, QUICK) as side:
        side.wait(lambda: time.monotonic() > began + 1.5 or None, "the end")


def test_a_side_that_ends_while_it_is_looked_at_is_not_at_work(tmp_path):
    with ThreadPoolExecutor(1) as pool:
        with sentry.Trainer(tmp_path, Times(beat=60)):
            counts = pool.submit(sentry.Pointers(tmp_path).is_counting, "trainer", 3.0)
            time.sleep(0.1)
        assert not counts.result()


def test_a_second_side_is_refused_and_a_killed_one_is_followed(tmp_path, monkeypatch):
    monkeypatch.setattr(sentry.Producer, "patience", 0.2)

    def enter() -> int:
        with sentry.Producer(tmp_path, QUICK):
            return 0

    with (
        sentry.Producer(tmp_path, QUICK),
        refused(r"a producer is at work here already\. Wait for it"),
    ):
        forks.answered(enter)
    leave_dead(tmp_path, "producer")
    assert forks.answered(enter) == 0


def test_a_side_that_is_told_to_stop_leaves_as_a_run_does_that_is_to_be_requeued(tmp_path):
    with (
        pytest.raises(Requeue) as left,
        sentry.Producer(tmp_path, QUICK, is_stopped=lambda: True) as side,
    ):
        side.report("makes epoch 1")
    assert left.value.code == REQUEUE_EXIT_CODE
    assert sentry.Pointers(tmp_path).beat("producer").activity == "was stopped"


def test_pointers_hold_no_paths_and_damaged_ones_are_named(tmp_path):
    place = tmp_path / "sentry"
    with sentry.Producer(tmp_path, QUICK) as side:
        side.announce(3, 1)
    files = {path.name: json.loads(path.read_text() or "0") for path in place.iterdir()}
    assert set(files) == {"producer.json", "producer.beat", "producer.lock"}
    assert str(tmp_path) not in json.dumps(files)
    (place / "producer.json").write_text('{"fast": 3')
    with refused(r"producer.json: is no file of the sentry .* Remove the folder"):
        side.made()
