"""Training steps as the loop takes them, with their memory measured: what a trial, a soak and a verification
share."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch

from millrace.asr.loading.collate import Batch, collate
from millrace.asr.loading.dataset import BucketedDataset
from millrace.asr.loading.decode import SAMPLING_RATE
from millrace.asr.models.base import AsrModel, Prepared
from millrace.asr.planning import planner
from millrace.asr.planning.cut import BatchBudget, batch_cost
from millrace.asr.planning.plan import Plan
from millrace.asr.training.task import AsrTask
from millrace.common.errors import MillraceError
from millrace.common.machine.memory import CudaMeter, HostMeter, is_out_of_memory
from millrace.common.training import devices
from millrace.common.training.ranks import Ranks
from millrace.common.training.settings import LoopSettings
from millrace.common.training.task import Share
from millrace.common.training.updates import Updates


class TrialSteps:
    """Model, optimiser and updates of a run. Call `meter.begin()` when all else is set up, then `run`.

    With a `world_size` above 1 a lone process trains under DDP too: its gradient buckets stay allocated
    between steps.
    """

    def __init__(self, task: AsrTask, settings: LoopSettings, limit_gb: float, world_size: int = 1) -> None:
        self.task, self.settings, self.limit_gb = task, settings, limit_gb
        ranks = Ranks.from_environment()
        alone = world_size > 1 and ranks.world_size == 1
        fabric = _lone_ddp(settings) if alone else devices.launch(ranks, settings)
        self.device, self.rank = fabric.device, ranks.rank
        self.meter = CudaMeter(limit_gb) if self.device.type == "cuda" else HostMeter(limit_gb)
        self.updates = Updates(task, settings, fabric)
        self.world_size = fabric.world_size
        self.steps, self.heaviest = 0, {}

    def run(self, batches: Iterable[Batch], stop: bool = False) -> dict[str, Any]:
        """Step over all batches, and say what that took. Ends where memory runs out (`oom`) and, if told to
        `stop`, after the first step above the limit; other errors are raised."""
        last: dict[str, Any] = {}
        try:
            highest = 0
            for batch in batches:
                last = shape(batch)
                self._step(self.updates.model.prepare(batch, 0))
                self.steps += 1
                peak = self.meter.peak()
                if peak > highest:
                    highest, self.heaviest = peak, {"step": self.steps, **last}
                if stop and peak > self.meter.limit:
                    break
        except (RuntimeError, MemoryError, OSError) as error:
            if not is_out_of_memory(error):
                raise
            # The traceback's frames hold the tensors of the step.
            message = " ".join(str(error).split())[:300] or type(error).__name__
            error.__traceback__ = None
            return {
                "oom": True,
                "steps": self.steps,
                "heaviest": {"step": self.steps + 1, **last},
                "message": message,
            }
        facts = self.meter.facts()
        retried = bool(facts.get("retries"))
        return {"oom": False, "retried": retried, "steps": self.steps, "heaviest": self.heaviest, **facts}

    def _step(self, prepared: Prepared) -> None:
        """One optimiser step; with accumulation from two equal batches: the gradients of the first lie beside
        the second's activations."""
        updates, count = self.updates, min(self.settings.grad_acc, 2)
        updates.clear()
        total = 0.0
        for micro in range(count):
            prepared = prepared.to(self.device) if self.device.type != "cpu" else prepared
            share, more = Share(prepared, np.asarray(self.task.batch_ids(prepared))), micro + 1 < count
            loss = updates.forward(share, more)
            updates.backward(loss, share, more)
            total += share.weight
        if self.world_size > 1:
            summed = torch.tensor(total, dtype=torch.float64, device=self.device)
            torch.distributed.all_reduce(summed)
            total = float(summed)
        if total > 0:
            updates.apply(total, count, self.steps + 1, 0.01)


def worst_batch(
    task: AsrTask, model: AsrModel, audio_rows: list[int], text_rows: list[int], count: int
) -> Batch:
    """`count` samples: the longest audio, each with one of the longest transcripts.

    What cannot be read is replaced by the longest that can; a transcript that its audio has no room for (CTC)
    by the clip's own. Raises MillraceError where no sample can be used.
    """
    dataset = BucketedDataset(task.table)
    rows = task.table.rows([audio_rows[at % len(audio_rows)] for at in range(count)])
    texts = task.table.rows([text_rows[at % len(text_rows)] for at in range(count)])
    good, failed = [], []
    raws = dict(zip(rows, dataset.reader.read_many([(r.tar, r.offset, r.size) for r in rows]), strict=True))
    for row in rows:
        found = collate(0, [row], [raws[row]])
        good, failed = (good, [*failed, *found.bad]) if found.bad else ([*good, row], failed)
    if not good:
        raise MillraceError(
            f"none of the longest {len(rows)} samples can be used ({failed[0].reason}: {failed[0].message})",
            where=str(task.options.bucket_dir),
            remedy="Mend or remove these samples and build the buckets again",
        )
    rows = (good * -(-count // len(good)))[:count]
    paired = [row._replace(transcript=text.transcript) for row, text in zip(rows, texts, strict=True)]
    batch = collate(0, paired, [raws[row] for row in rows])
    unfit = {sample for sample, _ in model.prepare(batch, 0).dropped}
    if unfit:
        paired = [row if row.sample_id in unfit else pair for row, pair in zip(rows, paired, strict=True)]
        batch = collate(0, paired, [raws[row] for row in rows])
    return batch


def shape(batch: Batch) -> dict[str, float]:
    """Rows, padded seconds, and characters a row."""
    characters = sum(map(len, batch.transcripts)) / max(len(batch), 1)
    return {"rows": len(batch), "seconds": batch.audio.shape[1] / SAMPLING_RATE, "characters": characters}


def _lone_ddp(settings: LoopSettings) -> Any:
    from lightning_fabric import Fabric
    from lightning_fabric.plugins.environments import LightningEnvironment
    from lightning_fabric.strategies import DDPStrategy

    device = settings.device if settings.device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fabric = Fabric(
            accelerator=device,
            devices=1,
            precision=settings.precision,
            plugins=[LightningEnvironment()],
            strategy=DDPStrategy(
                find_unused_parameters=bool(settings.find_unused_parameters), gradient_as_bucket_view=True
            ),
        )
        fabric.launch()
    return fabric


class SoakPlan:
    """At least `steps` steps of as many epochs as that takes, in their shuffled order. A Plan for
    BucketedDataset.

    `durations`: seconds of the rows of every bucket that takes part; `first` is the number of the first row
    of the first one. Of an epoch with more steps, evenly spaced ones, and the heaviest of every bucket, which
    come on top.
    """

    def __init__(
        self,
        durations: Sequence[np.ndarray],
        budgets: Sequence[BatchBudget],
        steps: int,
        seed: int,
        world_size: int = 1,
        first: int = 0,
    ) -> None:
        self.first = first
        self.chosen: list[tuple[Plan, int]] = []
        epoch = 0
        while len(self.chosen) < steps:
            plan = planner.plan_epoch(durations, budgets, seed, epoch, world_size)
            wanted = min(steps - len(self.chosen), len(plan))
            numbers = set(np.linspace(0, len(plan) - 1, wanted).astype(int).tolist())
            if not epoch:
                numbers |= set(_heaviest(plan))
            self.chosen += [(plan, number) for number in sorted(numbers)]
            epoch += 1

    def __len__(self) -> int:
        return len(self.chosen)

    def batch(self, step: int, rank: int) -> np.ndarray:
        plan, number = self.chosen[step]
        return plan.batch(number, rank) + self.first

    def is_filler(self, step: int, rank: int) -> bool:
        plan, number = self.chosen[step]
        return plan.is_filler(number, rank)


def _heaviest(plan: Plan) -> list[int]:
    """The step of each bucket in which any rank has the most padded work."""
    weight = batch_cost(np.diff(plan.offsets), plan.longest).reshape(len(plan), plan.world_size)
    bucket = np.asarray(plan.bucket).reshape(weight.shape)
    return [
        int(np.where(bucket == number, weight, -1).max(axis=1).argmax())
        for number in np.unique(bucket).tolist()
    ]
