"""Producer and trainer together: every record once an epoch, whoever is killed, quicker or
first."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from millrace.common.stopping import Requeue
from millrace.image.producer import epochs, production
from millrace.image.producer.sentry import Pointers, Producer, Times, Trainer
from millrace.image.producer.shuffle import EpochMaker
from millrace.image.records.reader import RecordReader
from millrace.image.records.record_set import RecordSet
from tests.files import contents
from tests.image.producer.stand_in import (
    FolderWatch,
    assert_each_record_once,
    train,
    wait_for_epoch,
)
from tests.image.record_sets import write_set
from tests.refusals import refused

QUICK = Times(beat=0.05, wait_limit=120.0)
# So slow that a busy machine is not taken for a side that has ended.
SLOW = Times()
LENGTHS = [7, 7, 7, 6, 6, 6, 6]


@pytest.mark.parametrize(
    "ahead, seconds, is_producer_first",
    [(0, 0.0, True), (1, 0.1, True), (1, 0.0, False), (3, 0.1, False)],
)
def test_both_sides_come_to_their_end_and_folders_stay_within_what_is_allowed(
    tmp_path, ahead, seconds, is_producer_first
):
    producer = threading.Thread(target=produce, args=(maker_of(tmp_path), ahead))
    with FolderWatch(tmp_path) as watch:
        if is_producer_first:
            producer.start()
        with Trainer(tmp_path, times=QUICK) as side:
            if not is_producer_first:
                threading.Timer(0.3, producer.start).start()
            train(side, tmp_path / "notes", 5, seconds)
        producer.join(120)
    assert not producer.is_alive() and watch.most <= ahead + 1 and max(watch.epochs, default=0) <= 4
    assert_each_record_once(tmp_path / "notes", 5, sum(LENGTHS))
    assert not epochs.whole(tmp_path) and Pointers(tmp_path).made().fast == 4
    assert Pointers(tmp_path).wanted()[:2] == (5, 5)


def produce(maker: EpochMaker, ahead: int = 1, times: Times = QUICK, **how: object) -> int:
    """Make the epochs that are wanted, as a producer of its own."""
    with Producer(maker.root, times, **how) as side:
        return production.produce(maker, side, ahead)


def produce_until_it_waits(maker: EpochMaker) -> None:
    """A producer that finds nothing to make, and is stopped."""
    looks = itertools.count()
    with pytest.raises(Requeue):
        produce(maker, is_stopped=lambda: next(looks) > 20)


def maker_of(root: Path, seed: int = 1) -> EpochMaker:
    """What makes epochs of records that lie there, in the order of this seed."""
    return EpochMaker(write_set(root, LENGTHS), root, 3, seed)


@contextlib.contextmanager
def training(root: Path, top: int, start: int = 0, times: Times = QUICK) -> Iterator[Trainer]:
    """A trainer that wants these epochs."""
    with Trainer(root, times) as trainer:
        trainer.want(top, start)
        yield trainer


@pytest.fixture
def producing(tmp_path):
    """A producer in a thread."""
    maker = maker_of(tmp_path)

    def run() -> None:
        with contextlib.suppress(Requeue):
            produce(maker, is_stopped=end.is_set)

    end, thread = threading.Event(), threading.Thread(target=run)
    thread.start()
    yield
    end.set()
    thread.join()


def test_a_trainer_that_goes_back_gets_the_same_bytes_within_the_same_disk(tmp_path, producing):
    with FolderWatch(tmp_path) as watch:
        # The producer is not done when the trainer goes back.
        with training(tmp_path, top=9) as side:
            wait_for_epoch(side, 1)
            before = contents(tmp_path / "train_1")
            for epoch in range(3):
                wait_for_epoch(side, epoch)
                side.trained(epoch)
            wait_for_epoch(side, 3)
            assert not (tmp_path / "train_1").exists()
        with training(tmp_path, top=9, start=1) as side:
            wait_for_epoch(side, 1)
            assert contents(tmp_path / "train_1") == before
    assert watch.most <= 2


def test_other_flags_are_refused_while_the_trainer_is_at_work_and_a_reboot_makes_epochs_anew(
    tmp_path,
):
    other = maker_of(tmp_path, seed=2)
    with training(tmp_path, top=2, times=SLOW):
        assert produce(maker_of(tmp_path)) == 2
        with refused("was made with --seed 1 "):
            produce(other, times=SLOW)
    produce(other)
    assert epochs.whole(tmp_path)[1]["seed"] == 2
    # What another boot of this machine left may not have reached the disk.
    (tmp_path / "train_1" / "train-00000-of-00007.h5").write_bytes(b"torn")
    made = Pointers(tmp_path).made()
    Pointers(tmp_path).write("producer.json", made._replace(boot="another", is_done=False))
    produce(other)
    assert RecordReader(RecordSet.open(tmp_path, "train_1")).read(0, 0, 1).ids.size


def test_a_producer_that_comes_after_a_training_waits_for_the_next_one(tmp_path):
    """Its trainer may still be there, in its last evaluation."""
    maker = maker_of(tmp_path)
    with training(tmp_path, top=2) as trainer:
        assert produce(maker) == 2
        trainer.trained(0)
        trainer.trained(1)
        produce_until_it_waits(maker)
    assert not Pointers(tmp_path).made().is_done


def test_a_producer_does_not_serve_what_an_earlier_trainer_wanted(tmp_path):
    """It started beside a new trainer, which has yet to say what it wants."""
    maker = maker_of(tmp_path)
    with training(tmp_path, top=2):
        produce(maker)
    # The trainer was killed, came again when all was made, and trained the rest.
    with training(tmp_path, top=2, start=1) as trainer:
        trainer.trained(1)

    with Trainer(tmp_path, times=QUICK) as trainer:
        later = threading.Timer(1, lambda: trainer.want(top=2))
        later.start()
        produce(maker)
        later.join()
        assert trainer.is_ready(1)


def test_a_producer_of_the_next_training_waits_though_a_trainer_came_again_meanwhile(tmp_path):
    """That found all trained, and has ended."""
    maker = maker_of(tmp_path)
    with training(tmp_path, top=2):
        produce(maker)
    with training(tmp_path, top=2, start=2):
        pass
    produce_until_it_waits(maker)


def test_epochs_of_other_records_are_made_anew_for_a_trainer_that_begins(tmp_path):
    for seed in (1, 2):
        with training(tmp_path, top=2):
            produce(maker_of(tmp_path, seed))
    assert epochs.whole(tmp_path)[1]["seed"] == 2


def test_an_epoch_of_other_records_that_a_resumed_trainer_may_read_is_not_removed(tmp_path):
    with training(tmp_path, top=3):
        produce(maker_of(tmp_path), ahead=2)
    with (
        training(tmp_path, top=3, start=1, times=SLOW),
        refused("was made with --seed 1 "),
    ):
        produce(maker_of(tmp_path, seed=2), ahead=2, times=SLOW)
    assert epochs.whole(tmp_path)[1]["seed"] == 1
