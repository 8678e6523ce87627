"""Image classification as a task: lines, rates, and data that are not those of the run."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from millrace.common.errors import MillraceError
from millrace.common.stopping import Requeue, StopSignals
from millrace.common.training.ranks import Exchange, Ranks
from millrace.image.producer.shuffle import EpochMaker
from millrace.image.training.batches import Batch
from millrace.image.training.epoch_meter import EpochMeter
from millrace.image.training.options import TrainOptions
from millrace.image.training.task import ImageTask
from tests.image.record_sets import write_set

OPTIONS = TrainOptions(arch="resnet_small", batch_size=6, workers=0, augment="none", device="cpu")


def small_task(root: Path, val: int = 9, **options: object) -> ImageTask:
    """A task over 20 records of train and some of val, of 3 classes."""
    write_set(root, [10, 10])
    write_set(root, [val], "val")
    return ImageTask(dataclasses.replace(OPTIONS, **options), root, root)


def batch(epoch: int, step: int) -> Batch:
    images, labels = torch.zeros(2, 4, 4, 3, dtype=torch.uint8), torch.zeros(2, dtype=torch.int64)
    return Batch(step, epoch, images, labels, np.arange(2), 2, [])


def test_a_line_has_means_since_the_last_one_and_in_brackets_since_the_epoch_began(tmp_path):
    task = small_task(tmp_path)
    model = task.build_model()

    def line(epoch: int, step: int, images: int, right: int, seconds: float) -> str:
        task.training_step(model, batch(epoch, step))
        counts = {"batches": 2, "samples": images, "top1": right, "top5": images}
        share = {"data_wait": 0.25}
        figures = {"counts": counts, "seconds": seconds, "time_share": share, "loss": float(right)}
        return " ".join(task.describe("train", figures).split())

    assert line(0, 1, 10, 1, 4.0).endswith(
        "Time 2.000 ( 2.000) Data 0.500 ( 0.500) Loss 1.0000e+00 (1.0000e+00)"
        " Acc@1 10.00 ( 10.00) Acc@5 100.00 (100.00)"
    )
    assert line(0, 3, 30, 9, 2.0).endswith(
        "Time 1.000 ( 1.500) Data 0.250 ( 0.375) Loss 9.0000e+00 (7.0000e+00)"
        " Acc@1 30.00 ( 25.00) Acc@5 100.00 (100.00)"
    )
    assert line(1, 1, 10, 5, 2.0).startswith("Epoch: [1][2/")
    assert "Acc@1 50.00 ( 50.00)" in line(2, 1, 10, 5, 2.0)


def test_a_step_is_one_of_all_ranks_in_a_line():
    meter = EpochMeter(world_size=2)
    meter.begin(0, 10, 20)
    counts = {"batches": 20, "samples": 40, "top1": 10, "top5": 40}
    figures = {"counts": counts, "seconds": 5.0, "time_share": {"data_wait": 0.5}, "loss": 1.0}
    assert "Time  0.500 ( 0.500)\tData  0.250 ( 0.250)" in meter.line(figures)


def test_the_rate_falls_to_a_tenth_every_so_many_epochs(tmp_path):
    task = small_task(tmp_path, decay_epochs=2)
    assert [task.rate_factor(epoch) for epoch in range(6)] == pytest.approx(
        [1, 1, 0.1, 0.1, 0.01, 0.01]
    )


def test_an_epoch_of_other_records_is_refused(tmp_path):
    other = write_set(tmp_path / "other", [10, 10])
    task = small_task(tmp_path / "own")
    task.stop = StopSignals()
    maker = EpochMaker(other, tmp_path / "own", 2, seed=1)
    maker.make(1, str)
    assert len(list(task.loader(1, 0, 0, 1))) == 4
    for path in (tmp_path / "own/train_1").glob("*.json"):
        path.write_text(path.read_text().replace(other.ids_digest, "20-0"))
    with pytest.raises(
        MillraceError, match=r"train_1: 20 records .*made from other records: remove it"
    ):
        next(iter(task.loader(1, 0, 0, 1)))


def test_a_checkpoint_of_other_records_or_another_size_is_refused(tmp_path):
    state = small_task(tmp_path / "a").state_dict()
    for other in (
        small_task(tmp_path / "b", image_size=3),
        ImageTask(OPTIONS, write_more(tmp_path / "c"), tmp_path),
    ):
        with pytest.raises(MillraceError, match="trained on other records, classes or image size"):
            other.load_state_dict(state)
    small_task(tmp_path / "d").load_state_dict(state)


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


@pytest.mark.parametrize(("device", "pins"), [("cpu", False), ("cuda", True), ("auto", True)])
def test_batches_are_pinned_only_where_a_gpu_trains(tmp_path, monkeypatch, device, pins):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    task = small_task(tmp_path, device=device)
    assert task.batch_loader(0).data_loader.pin_memory == pins
