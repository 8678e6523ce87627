"""Image classification as a task of the training loop: epochs as the producer makes them, SGD,
accuracies; how the ranks of a machine share its batch size and workers."""

from __future__ import annotations

import hashlib
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import astuple
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from millrace.common import jsonl, settings
from millrace.common.errors import MillraceError
from millrace.common.loading.loader import BatchLoader
from millrace.common.loading.task_loader import HeldOut, TaskLoader, TaskModel
from millrace.common.stopping import StopSignals
from millrace.common.training import devices
from millrace.common.training.ranks import Ranks
from millrace.common.training.task import Spans, Task
from millrace.image.models import resnet
from millrace.image.producer import epochs
from millrace.image.producer.sentry import Trainer
from millrace.image.records.folder import validation_folder
from millrace.image.records.reader import RecordReader
from millrace.image.records.record_set import RecordSet, check_classes
from millrace.image.training.batches import Batch, RecordBatches, normalised
from millrace.image.training.options import TrainOptions
from millrace.image.training.plan import BlockPlan, Shape


class ImageTask(Task):
    """Epoch 0 is train/, epoch e is train_<e>/; evaluated on val.

    `scratch` holds the produced epochs. `side` is the trainer's side of the sentry, on rank 0 only;
    `check` raises what ends a wait for the producer.
    """

    every_epoch = True

    def __init__(
        self, options: TrainOptions, root: Path, scratch: Path, side: Trainer | None = None
    ) -> None:
        self.options = options
        self.side = side
        self.scratch = scratch
        self.ranks = Ranks.from_environment()
        self.check: Callable[[], None] = lambda: None
        self.train = RecordSet.open(root)
        self.val = RecordSet.open(root, validation_folder(root))
        check_classes(self.train, self.val)
        self.image_size = min(self.val.size)
        self._check_image_size()
        self._shape = _shape_of(options, self.ranks)
        # The shapes that an epoch's plans have had, by number of ranks: they may differ before a
        # resume.
        self._shapes: defaultdict[int, dict[int, Shape]] = defaultdict(dict)
        self._plans = lru_cache(2)(self._plan)
        window = self._shape.batch_size * options.mixed_batches
        self._batches = RecordBatches(
            self.train, scratch, self.image_size, window, options.augment, options.seed
        )
        self._epoch = -1  # in work

    def _check_image_size(self) -> None:
        """Raise MillraceError if the middles of train's records would be larger than they are;
        random crops are enlarged."""
        pixels = min(self.train.size)
        if self.options.augment == "none" and self.image_size > pixels:
            problem = f"the records of val have {self.image_size} pixels, of train {pixels}"
            remedy = "Convert train with a larger train_size, or train with --augment crop"
            raise MillraceError(problem, str(self.train.folder), remedy)

    def build_model(self) -> nn.Module:
        return resnet.build(self.options.arch, len(self.train.classes))

    def optimizer(self, model: nn.Module) -> torch.optim.SGD:
        options = self.options
        return torch.optim.SGD(
            model.parameters(), options.lr, options.momentum, weight_decay=options.weight_decay
        )

    def rate_factor(self, epoch: int) -> float:
        return 0.1 ** (epoch // self.options.decay_epochs)

    def plan(self, epoch: int, world_size: int, spans: Spans = ()) -> BlockPlan:
        return self._plans(epoch, world_size, spans)

    def _plan(self, epoch: int, world_size: int, spans: Spans = ()) -> BlockPlan:
        """The plan of an epoch, or of its rest after `spans`."""
        shapes = self._shapes[epoch]
        shapes.setdefault(world_size, self._shape)
        return BlockPlan(len(self.train), world_size, shapes, epoch, self.options.seed, spans)

    def loader(
        self, epoch: int, start_step: int, rank: int, world_size: int, spans: Spans = ()
    ) -> Iterator[Batch]:
        """The batches of a plan, when its epoch lies whole on the disk. Workers outlive epochs."""
        self._wait(epoch)
        records = self._batches.records_of(epoch)
        if epoch:
            self._check_records(records)
        plan = self.plan(epoch, world_size, spans)
        loader = self.batch_loader(rank)
        loader.plan = plan
        loader.start_step = start_step
        yield from loader

    def _check_records(self, records: RecordSet) -> None:
        """Raise MillraceError if a produced epoch does not hold the records of train."""
        found = f"{len(records)} records ({records.ids_digest})"
        wanted = f"{len(self.train)} records ({self.train.ids_digest})"
        if found != wanted:
            remedy = "It was made from other records: remove it, the producer makes it again"
            raise MillraceError(f"{found}, train/ {wanted}", str(records.folder), remedy)

    def batch_loader(self, rank: int) -> BatchLoader:
        """What reads the batches of all plans on this rank."""
        if self._loader is None:
            self._batches.rank = rank
            self._loader = self._batch_loader(self._batches)
        return self._loader

    def _batch_loader(self, batches: RecordBatches) -> BatchLoader:
        workers = self._shape.streams if self.options.workers else 0
        # Pinning makes a context on a GPU, also where the CPU trains.
        pin = devices.kind_of(self.options.device) == "cuda"
        return BatchLoader(batches, workers, pin_memory=pin, prefetch_batches=2)

    def _wait(self, epoch: int) -> None:
        """Wait until all ranks see the epoch; leave in order if a stop signal comes meanwhile."""
        if self.side and self._epoch < 0:
            self.side.want(self.options.epochs, epoch)
        elif self.side:
            self.side.trained(self._epoch)  # its checkpoint is saved
        self._epoch = epoch
        if self.side:
            self.side.activity = f"waits for epoch {epoch} of {self.options.epochs}"
            folder = epochs.folder_of(self.scratch, epoch)
            self.side.wait(lambda: self._all_see(epoch) or None, f"epoch {epoch} ({folder})")
            self.side.activity = f"trains epoch {epoch} of {self.options.epochs}"
        else:
            while not self._all_see(epoch):
                pass  # rank 0 sets the pace

    def _all_see(self, epoch: int) -> bool:
        """Whether all ranks see the epoch; they leave together if one was asked to stop."""
        self.check()
        stop = self.stop
        assert stop is not None  # the loop has set it
        own = (self._sees(epoch), stop.requested, stop.time_is_up)
        seen, asked, time_is_up = zip(*self.exchange.gathered(own), strict=True)
        if any(asked):
            stop.time_is_up = any(time_is_up)
            stop.leave(self.ranks.is_main)
        return all(seen)

    def _sees(self, epoch: int) -> bool:
        if self.side:
            return self.side.is_ready(epoch)
        return epoch == 0 or epochs.read_mark(self.scratch, epoch) is not None

    def finish(self) -> None:
        """Tell the producer that all is trained, also if it was before this start; on rank 0."""
        assert self.side is not None
        if self._epoch < 0:
            self.side.want(self.options.epochs, self.options.epochs)
        else:
            self.side.trained(self._epoch)

    def batch_ids(self, batch: Batch) -> np.ndarray:
        if batch.filler:
            return batch.ids[:0]
        return batch.ids

    def training_step(self, model: nn.Module, batch: Batch) -> tuple[torch.Tensor, float, Mapping]:
        """(mean loss, images, counts) of a batch; right answers are counted on the device."""
        loss, top1, top5 = _answers(model, batch)
        counts = {"batches": 1, "top1": top1, "top5": top5}
        return loss, float(len(batch.ids)), counts

    def score(self, metrics: Mapping[str, float]) -> float:
        """The lower the better, for the best checkpoint."""
        return -metrics["acc1"]

    def evaluate(self, model: nn.Module, fabric: Any) -> dict[str, float]:
        return self.accuracies(model, fabric.device)

    def accuracies(self, model: nn.Module, device: torch.device) -> dict[str, float]:
        """Loss and top-1 and top-5 (percent) on val, each record once, by all ranks."""
        batches = RecordBatches(self.val, self.scratch, self.image_size, self._shape.batch_size)
        batches.rank = self.ranks.rank
        world_size = self.ranks.world_size
        in_order = self._shape._replace(mixed_batches=1)
        batches.plan = BlockPlan(len(self.val), world_size, {world_size: in_order})
        # Loss, images, right in one, in five.
        sums = torch.zeros(4, dtype=torch.float64, device=device)
        with closing(self._batch_loader(batches)) as loader:
            for batch in loader:
                if batch.filler or not len(batch.ids):
                    continue
                loss, top1, top5 = _answers(model, batch.to(device, non_blocking=True))
                images = torch.ones_like(loss) * len(batch.ids)
                sums += torch.stack([loss * images, images, top1, top5]).double()

        loss, images, top1, top5 = self.exchange.sums(sums.tolist())
        return {
            "loss": loss / images,
            "acc1": 100 * top1 / images,
            "acc5": 100 * top5 / images,
            "images": int(images),
        }

    def state_dict(self) -> dict[str, Any]:
        """A digest of what is trained on, and the shapes of the plans of the epoch in work."""
        # With the digests of files: ids are numbers, whatever image or label they are of.
        files = [astuple(file) for records in (self.train, self.val) for file in records.files]
        data = [files, self.train.classes, self.image_size]
        shapes = {world: list(shape) for world, shape in self._shapes[self._epoch].items()}
        return {
            "data": jsonl.digest(data),
            "epoch": self._epoch,
            "shapes": shapes,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Raises MillraceError if the checkpoint was trained on other records."""
        if state["data"] != self.state_dict()["data"]:
            problem = "the checkpoint was trained on other records, classes or image size"
            remedy = "Go on with those, or train in another --output-dir"
            raise MillraceError(problem, str(self.train.folder), remedy)
        shapes = {world: Shape(*shape) for world, shape in state["shapes"].items()}
        self._shapes[state["epoch"]] = shapes
        self._plans.cache_clear()


def _shape_of(options: TrainOptions, ranks: Ranks) -> Shape:
    """How this rank's block is cut: the ranks of a machine share its batch size and workers."""
    share = ranks.local_world_size
    batch_size = max(options.batch_size // share, 1)
    workers = math.ceil(options.workers / share)
    return Shape(batch_size, max(workers, 1), options.mixed_batches)


def audited(records: str, **given: Any) -> TaskLoader:
    """What the audit looks at: epoch 0 of a run with these flags; training makes the others."""
    task = _task(records, given)
    task.stop = StopSignals()  # nobody waits for a producer
    return TaskLoader(task, epochs=1, names=lambda: _pictures(task, task.train))


def audited_validation(records: str, **given: Any) -> HeldOut:
    """The images that such a run is evaluated on."""
    task = _task(records, given)
    return HeldOut(lambda: _pictures(task, task.val))


def audited_model(records: str, **given: Any) -> TaskModel:
    """The model of such a run."""
    return TaskModel(_task(records, given))


def _task(records: str, given: Mapping[str, Any]) -> ImageTask:
    return ImageTask(settings.parsed(TrainOptions, given), Path(records), Path(records))


def _pictures(task: ImageTask, records: RecordSet) -> Iterator[str]:
    """Digests of stored images; none if train and val store one image in two sizes."""
    if task.train.size != task.val.size:
        return
    reader = RecordReader(records)
    for file, entry in enumerate(records.files):
        for start in range(0, entry.records, 256):
            for image in reader.read(file, start, 256).images:
                yield hashlib.blake2b(image.data, digest_size=8).hexdigest()


def _answers(model: nn.Module, batch: Batch) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Mean loss, and how many labels are the first, and among the first five: float32, on the
    device."""
    logits = model(normalised(batch.images)).logits.float()
    loss = functional.cross_entropy(logits, batch.labels)
    classes = logits.shape[1]
    best = logits.detach().topk(min(5, classes), dim=1)
    is_right = best.indices == batch.labels[:, None]
    top1 = is_right[:, 0].sum()
    top5 = is_right.sum()
    return loss, top1.float(), top5.float()
