"""Training steps as the loop takes them, with their memory measured: what a trial, a soak and a verification share."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from scripts.asr.asr_model import AsrModel, Prepared
from scripts.asr.asr_task import AsrTask
from scripts.asr.collate import Batch, collate
from scripts.asr.dataset import BucketedDataset
from scripts.asr.decode import SAMPLING_RATE
from scripts.asr.memory_meter import CudaMeter, HostMeter, is_out_of_memory
from scripts.common import devices
from scripts.common.errors import MillraceError
from scripts.common.loop_settings import LoopSettings
from scripts.common.ranks import Ranks
from scripts.common.task import Share
from scripts.common.updates import Updates


class TrialSteps:
    """Model, optimiser and updates of a run. Call `meter.begin()` when all else is set up, then `run`.

    With a `world_size` above 1 a lone process trains under DDP too: its gradient buckets stay allocated between steps.
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
        """Step over all batches, and say what that took. Ends where memory runs out (`oom`) and, if told to `stop`,
        after the first step above the limit; other errors are raised."""
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
            return {"oom": True, "steps": self.steps, "heaviest": {"step": self.steps + 1, **last}, "message": message}
        facts = self.meter.facts()
        retried = bool(facts.get("retries"))
        return {"oom": False, "retried": retried, "steps": self.steps, "heaviest": self.heaviest, **facts}

    def _step(self, prepared: Prepared) -> None:
        """One optimiser step; with accumulation from two equal batches: the gradients of the first lie beside the
        second's activations."""
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


def worst_batch(task: AsrTask, model: AsrModel, audio_rows: list[int], text_rows: list[int], count: int) -> Batch:
    """`count` samples: the longest audio, each with one of the longest transcripts.

    What cannot be read is replaced by the longest that can; a transcript that its audio has no room for (CTC) by the
    clip's own. Raises MillraceError where no sample can be used.
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
