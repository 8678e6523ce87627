"""Image classification as a task of the training loop: epochs as the producer makes them, SGD,
accuracies."""

from __future__ import annotations

import hashlib
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from millrace.common import jsonl, settings
from millrace.common.cli import log
from millrace.common.errors import MillraceError, counted
from millrace.common.loading.loader import BatchLoader
from millrace.common.loading.task_loader import HeldOut, TaskLoader, TaskModel
from millrace.common.stopping import StopSignals
from millrace.common.training import devices
from millrace.common.training.ranks import Ranks
from millrace.common.training.task import Spans, Task
from millrace.image.models import resnet
from millrace.image.producer import epochs
from millrace.image.producer.quality import Spread, expected_spread
from millrace.image.producer.sentry import Trainer
from millrace.image.records.reader import RecordReader
from millrace.image.records.record_set import RecordSet, check_classes, validation_folder
from millrace.image.training.batches import Batch, RecordBatches, normalised
from millrace.image.training.options import TrainOptions
from millrace.image.training.plan import BlockPlan, Shape

# Columns of a line: what a value is the mean over, and its layout.
_COLUMNS = {"Time": ("steps", "6.3f"), "Data": ("steps", "6.3f"), "Loss": ("images", ".4e")}
_COLUMNS |= {"Acc@1": ("images", "6.2f"), "Acc@5": ("images", "6.2f")}


class ImageTask(Task):
    """Epoch 0 is train/, epoch e is train_<e>/; evaluated on val.

    `scratch` holds the produced epochs. `side` is the trainer's side of the sentry, on rank 0 only;
    `check` raises what ends a wait for the producer. `first_epoch` is where a run without a
    checkpoint begins.
    """

    every_epoch = True

    def __init__(
        self,
        options: TrainOptions,
        root: Path,
        scratch: Path,
        side: Trainer | None = None,
        first_epoch: int = 0,
    ) -> None:
        self.options, self.side, self.first_epoch = options, side, first_epoch
        self.scratch, self.ranks = scratch, Ranks.from_environment()
        self.check: Callable[[], None] = lambda: None
        self.train, self.val = RecordSet.open(root), RecordSet.open(root, validation_folder(root))
        check_classes(self.train, self.val)
        self.image_size = options.image_size or (min(self.val.size) if self.val.size else 224)
        for records in (self.val, *([self.train] if options.augment == "none" else [])):
            if records.size and self.image_size > min(records.size):
                words = (
                    f"--image-size {self.image_size} is more than the records' {min(records.size)}"
                    " pixels"
                )
                remedy = "Take a smaller one, or 0 for that of val's records"
                raise MillraceError(words, str(records.folder), remedy)
        share = self.ranks.local_world_size
        streams, batch_size = (
            math.ceil(options.workers / share),
            max(options.batch_size // share, 1),
        )
        self._shape = Shape(batch_size, max(streams, 1), options.mixed_batches)
        # The shapes that an epoch's plans have had, by number of ranks: they may differ before a
        # resume.
        self._shapes: defaultdict[int, dict[int, Shape]] = defaultdict(dict)
        self._plans = lru_cache(2)(self._plan)
        window, crops = batch_size * options.mixed_batches, (options.augment, options.seed)
        self._batches = RecordBatches(self.train, scratch, self.image_size, window, *crops)
        self.spread: Spread | None = None  # for the K of the epochs that this start has seen
        self._epoch, self._at, self._sums = -1, (-1, 0, 0), Counter[str]()

    def build_model(self) -> nn.Module:
        model = resnet.build(self.options.arch, len(self.train.classes))
        millions = sum(parameter.numel() for parameter in model.parameters()) / 1e6
        text = "%s: %.1f million parameters, %d classes, images of %d pixels; train has %s, val %s"
        counts = counted(len(self.train), "record"), counted(len(self.val), "record")
        log.info(
            text, self.options.arch, millions, len(self.train.classes), self.image_size, *counts
        )
        return model

    def optimizer(self, model: nn.Module) -> torch.optim.SGD:
        chosen = {name: getattr(self.options, name) for name in ("lr", "momentum", "weight_decay")}
        return torch.optim.SGD(model.parameters(), **chosen)

    def rate_factor(self, epoch: int) -> float:
        return 0.1 ** (epoch // self.options.decay_epochs)

    def plan(self, epoch: int, world_size: int, spans: Spans = ()) -> BlockPlan:
        return self._plans(epoch, world_size, spans)

    def _plan(self, epoch: int, world_size: int, spans: Spans = ()) -> BlockPlan:
        """The plan of an epoch, or of its rest after `spans`."""
        self._shapes[epoch].setdefault(world_size, self._shape)
        seed = self.options.seed
        return BlockPlan(len(self.train), world_size, self._shapes[epoch], epoch, seed, spans)

    def loader(
        self, epoch: int, start_step: int, rank: int, world_size: int, spans: Spans = ()
    ) -> Iterator[Batch]:
        """The batches of a plan, when its epoch lies whole on the disk. Workers outlive epochs."""
        self._wait(epoch)
        records = self._batches.records_of(epoch)
        if epoch and (len(records), records.ids_digest) != (len(self.train), self.train.ids_digest):
            words = f"{len(records)} records ({records.ids_digest}), train/ {len(self.train)}"
            remedy = "It was made from other records: remove it, the producer makes it again"
            raise MillraceError(f"{words} ({self.train.ids_digest})", str(records.folder), remedy)
        if records.pool and not self.spread:
            self.spread = expected_spread(self.train, records.pool)
            log.info("%s", self.spread.line(len(records)))
        plan = self.plan(epoch, world_size, spans)
        text = "epoch %d: %s in contiguous blocks on %s, 0 dropped, %d repeated"
        log.info(
            text, epoch, counted(len(plan), "step"), counted(world_size, "rank"), plan.repeated
        )
        loader = self.batch_loader(rank)
        loader.plan, loader.start_step = plan, start_step
        self._at = (epoch, start_step, len(plan))
        yield from loader

    def batch_loader(self, rank: int) -> BatchLoader:
        """What reads the batches of all plans on this rank."""
        if self._loader is None:
            self._batches.rank, self._loader = rank, self._batch_loader(self._batches)
        return self._loader

    def _batch_loader(self, batches: RecordBatches) -> BatchLoader:
        workers = self._shape.streams if self.options.workers else 0
        limit = self.options.max_bad_fraction
        # Pinning makes a context on a GPU, also where the CPU trains.
        pin = devices.kind_of(self.options.device) == "cuda"
        return BatchLoader(
            batches, workers, max_bad_fraction=limit, pin_memory=pin, prefetch_batches=2
        )

    def _wait(self, epoch: int) -> None:
        """Wait until all ranks see the epoch; leave in order if a stop signal comes meanwhile."""
        if self.side and self._epoch < 0:
            self.side.want(self.options.epochs, epoch)
        elif self.side:
            self.side.trained(self._epoch)  # its checkpoint is saved
        self._epoch, stop = epoch, self.stop
        assert stop is not None  # the loop has set it

        def ready() -> bool | None:
            self.check()
            if self.side:
                is_there = self.side.is_ready(epoch)
            else:
                is_there = epoch == 0 or epochs.read_mark(self.scratch, epoch) is not None
            parts = self.exchange.gathered((is_there, stop.requested, stop.time_is_up))
            _, asked, time_is_up = (any(values) for values in zip(*parts, strict=True))
            if asked:
                stop.time_is_up = time_is_up
                stop.leave(self.ranks.is_main)
            return all(part[0] for part in parts) or None

        if self.side:
            self.side.activity = f"waits for epoch {epoch} of {self.options.epochs}"
            self.side.wait(ready, f"epoch {epoch} ({epochs.folder_of(self.scratch, epoch)})")
            self.side.activity = f"trains epoch {epoch} of {self.options.epochs}"
        while not self.side and not ready():
            pass  # rank 0 sets the pace

    def finish(self) -> None:
        """Tell the producer that all is trained, also if it was before this start; on rank 0."""
        assert self.side is not None
        if self._epoch < 0:
            self.side.want(self.options.epochs, self.options.epochs)
        else:
            self.side.trained(self._epoch)

    def batch_ids(self, batch: Batch) -> np.ndarray:
        return batch.ids[:0] if batch.filler else batch.ids

    def training_step(self, model: nn.Module, batch: Batch) -> tuple[torch.Tensor, float, Mapping]:
        """(mean loss, images, counts) of a batch; right answers are counted on the device."""
        self._at = (batch.epoch, batch.step + 1, self._at[2])
        loss, top1, top5 = _answers(model, batch)
        counts = {"samples": len(batch.ids), "batches": 1, "top1": top1, "top5": top5}
        return loss, float(len(batch.ids)), counts

    def score(self, metrics: Mapping[str, float]) -> float:
        """The lower the better, for the best checkpoint."""
        return -metrics["acc1"]

    def evaluate(self, model: nn.Module, fabric: Any) -> dict[str, float]:
        return self.accuracies(model, fabric.device)

    def accuracies(self, model: nn.Module, device: torch.device) -> dict[str, float]:
        """Loss and top-1 and top-5 (percent) on val, each record once, by all ranks."""
        batches = RecordBatches(self.val, self.scratch, self.image_size, self._shape.batch_size)
        world_size, batches.rank = self.ranks.world_size, self.ranks.rank
        in_order = {world_size: self._shape._replace(mixed_batches=1)}
        batches.plan = BlockPlan(len(self.val), world_size, in_order)
        sums = torch.zeros(
            4, dtype=torch.float64, device=device
        )  # loss, images, right in one, in five
        with closing(self._batch_loader(batches)) as loader:
            for batch in loader:
                if batch.filler or not len(batch.ids):
                    continue
                loss, *right = _answers(model, batch.to(device, non_blocking=True))
                one = torch.ones_like(loss) * len(batch.ids)
                sums += torch.stack([loss * len(batch.ids), one, *right]).double()
        loss, images, top1, top5 = self.exchange.sums(sums.tolist())
        figures = {"loss": loss / images, "acc1": 100 * top1 / images, "acc5": 100 * top5 / images}
        return {**figures, "images": int(images)}

    def describe(self, event: str, figures: Mapping[str, Any]) -> str:
        """The lines of PyTorch's ImageNet example: values since the last line, in brackets since
        the epoch began (or the run went on)."""
        if event == "eval":
            return " * Acc@1 {acc1:.3f} Acc@5 {acc5:.3f}".format(**figures["metrics"])
        (epoch, step, steps), counts, seconds = self._at, figures["counts"], figures["seconds"]
        if self._sums["epoch"] != epoch:
            self._sums = Counter(epoch=epoch)
        now = {"steps": counts.get("batches", 0) / self.ranks.world_size or 1, "Time": seconds}
        now |= {
            "images": max(counts["samples"], 1),
            "Data": seconds * figures["time_share"]["data_wait"],
        }
        now |= {"Loss": (figures["loss"] or 0.0) * now["images"]}
        now |= {"Acc@1": 100 * counts["top1"], "Acc@5": 100 * counts["top5"]}
        self._sums.update(now)
        parts = [f"Epoch: [{epoch}][{step:>{len(str(steps))}}/{steps}]"]
        for name, (unit, layout) in _COLUMNS.items():
            value, mean = (values[name] / values[unit] for values in (now, self._sums))
            parts.append(f"{name} {value:{layout}} ({mean:{layout}})")
        return "\t".join(parts)

    def state_dict(self) -> dict[str, Any]:
        """A digest of what is trained on, and the shapes of the plans of the epoch in work."""
        of = [
            self.train.lengths.tolist(),
            self.train.ids_digest,
            self.train.classes,
            self.image_size,
        ]
        shapes = {world: list(shape) for world, shape in self._shapes[self._epoch].items()}
        return {"data": jsonl.digest(of), "epoch": self._epoch, "shapes": shapes}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Raises MillraceError if the checkpoint was trained on other records."""
        if state["data"] != self.state_dict()["data"]:
            problem = (
                "the checkpoint was trained on other records, classes or image size than these"
            )
            remedy = "Go on with those, or train in another --output-dir"
            raise MillraceError(problem, str(self.train.folder), remedy)
        self._shapes[state["epoch"]] = {
            world: Shape(*shape) for world, shape in state["shapes"].items()
        }
        self._plans.cache_clear()


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
    """Digests of stored images; none if train and val store one image in two ways."""
    if (task.train.layout, task.train.size) != (task.val.layout, task.val.size):
        return
    reader = RecordReader(records)
    for file, entry in enumerate(records.files):
        for start in range(0, entry.records, 256):
            for image in reader.read(file, start, 256).images:
                yield hashlib.blake2b(np.ascontiguousarray(image).data, digest_size=8).hexdigest()


def _answers(model: nn.Module, batch: Batch) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Mean loss, and how many labels are the first, and among the first five: float32, on the
    device."""
    logits = model(normalised(batch.images)).logits.float()
    best = logits.detach().topk(min(5, logits.shape[1]), dim=1).indices == batch.labels[:, None]
    return (
        functional.cross_entropy(logits, batch.labels),
        best[:, 0].sum().float(),
        best.sum().float(),
    )
