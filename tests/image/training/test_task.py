"""Image classification as a task: lines, rates, and data that are not those of the run."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from millrace.common.stopping import Requeue, StopSignals
from millrace.common.training.ranks import Exchange, Ranks
from millrace.common.training.settings import LoopSettings
from millrace.image.producer.shuffle import EpochMaker
from millrace.image.records.record_set import RecordSet
from millrace.image.training.options import TrainOptions
from millrace.image.training.task import ImageTask
from tests.image.record_sets import write_records, write_set
from tests.refusals import refused

OPTIONS = TrainOptions(arch="resnet_small", batch_size=6, workers=0, augment="none", device="cpu")


def small_task(
    root: Path, val: int = 9, val_size: tuple[int, int] = (4, 6), **options: object
) -> ImageTask:
    """A task over 20 records of train and some of val, of 3 classes."""
    write_set(root, [10, 10])
    write_set(root, [val], "val", val_size)
    return ImageTask(dataclasses.replace(OPTIONS, **options), root, root)


def test_the_loop_gets_the_choices_of_the_flags():
    chosen = {"epochs": 2, "lr": 0.3, "weight_decay": 0.7, "save_steps": 5, "log_ids": 1}
    chosen |= {"precision": "bf16-mixed", "device": "cpu", "timeout_seconds": 7.0, "seed": 9}
    options = TrainOptions(print_freq=3, **chosen)
    fixed = {"lr_scheduler_type": "constant", "warmup_ratio": 0.0, "max_grad_norm": 0.0}
    assert options.loop_settings() == LoopSettings(**chosen, **fixed, log_steps=3)


def test_the_rate_falls_to_a_tenth_every_so_many_epochs(tmp_path):
    task = small_task(tmp_path, decay_epochs=2)
    assert [task.rate_factor(epoch) for epoch in range(6)] == pytest.approx(
        [1, 1, 0.1, 0.1, 0.01, 0.01]
    )


def test_the_optimiser_has_the_rate_momentum_and_decay_of_the_flags(tmp_path):
    task = small_task(tmp_path, lr=0.3, momentum=0.8, weight_decay=0.7)
    (group,) = task.optimizer(task.build_model()).param_groups
    assert (group["lr"], group["momentum"], group["weight_decay"]) == (0.3, 0.8, 0.7)


def test_an_epoch_of_other_records_is_refused(tmp_path):
    other = write_set(tmp_path / "other", [10, 10])
    task = small_task(tmp_path / "own")
    task.stop = StopSignals()
    maker = EpochMaker(other, tmp_path / "own", 2, seed=1)
    maker.make(1, str)
    assert len(list(task.loader(1, 0, 0, 1))) == 4
    for path in (tmp_path / "own/train_1").glob("*.json"):
        path.write_text(path.read_text().replace(other.ids_digest, "20-0"))
    with refused(r"train_1: 20 records .*made from other records: remove it"):
        next(iter(task.loader(1, 0, 0, 1)))


def test_a_checkpoint_of_other_records_or_another_size_is_refused(tmp_path):
    state = small_task(tmp_path / "a").state_dict()
    for other in (
        small_task(tmp_path / "b", val_size=(3, 3)),
        ImageTask(OPTIONS, write_more(tmp_path / "c"), tmp_path),
        ImageTask(OPTIONS, write_others(tmp_path / "e", "train"), tmp_path),
        ImageTask(OPTIONS, write_others(tmp_path / "f", "val"), tmp_path),
        ImageTask(OPTIONS, rename_classes(tmp_path / "g"), tmp_path),
    ):
        with refused("trained on other records, classes or image size"):
            other.load_state_dict(state)
    small_task(tmp_path / "d").load_state_dict(state)


def rename_classes(root: Path) -> Path:
    small_task(root)
    for split in ("train", "val"):
        dataclasses.replace(RecordSet.open(root, split), classes=["a", "b", "c"]).write()
    return root


def write_others(root: Path, split: str) -> Path:
    """As many records of the same classes, with other pixels in one file."""
    small_task(root)
    records = RecordSet.open(root, split)
    first = records.files[0]
    images = np.full((first.records, *records.size, 3), 7, np.uint8)
    file = write_records(
        records.path(0), images, [n % 3 for n in range(first.records)], range(first.records)
    )
    dataclasses.replace(records, files=[file, *records.files[1:]]).write()
    return root


def write_more(root: Path) -> Path:
    write_set(root, [10, 11])
    write_set(root, [9], "val")
    return root


class BesideAnother(Exchange):
    """Sums with those of a rank that has read one image, and answered it rightly."""

    def sums(self, values: Sequence[float]) -> list[float]:
        return [value + 1.0 for value in values]


def test_an_image_that_keeps_a_rank_in_step_is_not_counted_twice(tmp_path):
    task = small_task(tmp_path, val=1)
    task.ranks, task.exchange = Ranks(1, 2, 1, 2), BesideAnother(1)
    model = task.build_model().eval()
    with torch.no_grad():
        figures = task.accuracies(model, torch.device("cpu"))
    assert figures == {"loss": 1.0, "acc1": 100.0, "acc5": 100.0, "images": 1}


def test_an_evaluation_is_the_mean_over_images_whatever_the_batches(tmp_path):
    losses = []
    for size in (6, 9):  # 6 and 3 of the 9 images, or all at once
        task = small_task(tmp_path / str(size), batch_size=size)
        task.exchange = Exchange(1)
        torch.manual_seed(0)
        with torch.no_grad():
            losses.append(task.accuracies(task.build_model().eval(), torch.device("cpu"))["loss"])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_the_best_checkpoint_is_that_of_the_highest_accuracy(tmp_path):
    task = small_task(tmp_path)
    right, sure = {"acc1": 50.0, "loss": 9.0}, {"acc1": 40.0, "loss": 1.0}
    assert task.score(right) < task.score(sure)


def test_each_rank_reads_its_own_block_and_a_filler_has_no_ids(tmp_path):
    read = []
    for rank in range(2):
        task = small_task(tmp_path)
        task.stop, task.exchange = StopSignals(), Exchange(1)
        batches = list(task.loader(0, 0, rank, 2))
        read.append(sorted(np.concatenate([task.batch_ids(batch) for batch in batches])))
        assert not len(task.batch_ids(dataclasses.replace(batches[0], filler=True)))
    assert read == [[*range(10)], [*range(10, 20)]]


def test_a_resumed_epoch_keeps_its_batches_and_the_next_has_those_of_the_flags(tmp_path):
    before = small_task(tmp_path, batch_size=4)
    before.stop, before.exchange = StopSignals(), Exchange(1)
    next(before.loader(0, 0, 0, 1))
    after = small_task(tmp_path, batch_size=10)
    assert len(after.plan(0, 1)) == 2
    after.load_state_dict(before.state_dict())
    assert [len(after.plan(epoch, 1)) for epoch in (0, 1)] == [5, 2]


def test_the_ranks_of_a_machine_share_its_batch_and_its_workers(tmp_path, monkeypatch):
    environment = {"RANK": 0, "WORLD_SIZE": 4, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 2}
    for name, number in environment.items():
        monkeypatch.setenv(name, str(number))
    task = small_task(tmp_path, workers=3)
    assert task.batch_loader(0).data_loader.num_workers == 2  # of 3, rounded up
    assert len(task.plan(0, 4).batch(0, 0)) == 3  # of 6


class OtherSays(Exchange):
    """Gathers with another rank's values, which come last."""

    def __init__(self, *answers: tuple[bool, bool, bool]) -> None:
        super().__init__(1)
        self.answers = list(answers)

    def gathered(self, value: tuple[bool, bool, bool]) -> list[tuple[bool, bool, bool]]:
        return [value, self.answers.pop(0)]


def test_an_epoch_begins_when_all_ranks_see_it_and_all_leave_if_one_was_asked_to(tmp_path):
    task = small_task(tmp_path)
    task.stop = StopSignals()
    task.exchange = OtherSays((False, False, False), (True, False, False), (True, True, True))
    assert len(list(task.loader(0, 0, 0, 1))) == 4
    assert len(task.exchange.answers) == 1  # it waited once for the other
    with pytest.raises(Requeue):
        next(task.loader(0, 0, 0, 1))
    assert task.stop.time_is_up and not task.stop.requested


@pytest.mark.parametrize("device, pins", [("cpu", False), ("cuda", True), ("auto", True)])
def test_batches_are_pinned_only_where_a_gpu_trains(tmp_path, monkeypatch, device, pins):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    task = small_task(tmp_path, device=device)
    assert task.batch_loader(0).data_loader.pin_memory == pins
