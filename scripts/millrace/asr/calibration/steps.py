"""Training steps as the loop takes them, their memory measured: what trials and the verification share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch

from millrace.asr.calibration.messages import Answer, Device, Request, Shape
from millrace.asr.loading.collate import Batch, collate
from millrace.asr.loading.dataset import BucketedDataset
from millrace.asr.loading.decode import SAMPLING_RATE
from millrace.asr.models.base import AsrModel, Prepared
from millrace.asr.planning import planner
from millrace.asr.planning.cut import BatchBudget, batch_cost
from millrace.asr.planning.plan import Plan
from millrace.asr.training.options import TrainOptions
from millrace.asr.training.task import AsrTask
from millrace.common.errors import MillraceError
from millrace.common.machine.memory import GB, CudaMeter, HostMeter, host_memory, is_out_of_memory
from millrace.common.training import devices
from millrace.common.training.ranks import Ranks
from millrace.common.training.settings import LoopSettings
from millrace.common.training.task import MicroBatch
from millrace.common.training.updates import Updates


def answer(request: Request) -> Answer | Device:
    """What a trial answers to a request. Raises MillraceError."""
    if request["kind"] == "device":
        return device_facts(request["device"])
    task, settings = AsrTask(TrainOptions(**request["options"])), LoopSettings(**request["settings"])
    steps = TrialSteps(task, settings, request["limit_gb"], request["world_size"])
    if request["kind"] == "soak":
        return steps.soak(request["bucket"], request["rows"], request["steps"])
    longest = (request["audio_rows"], request["text_rows"])
    batch = worst_batch(task, steps.updates.model, *longest, request["rows"])
    steps.meter.begin()
    return steps.run([batch] * request["steps"])


def device_facts(device: str) -> Device:
    """Kind, name and memory of a device. Raises MillraceError if cuda is asked for and there is none."""
    if device == "cpu" or (device == "auto" and not torch.cuda.is_available()):
        return {"kind": "cpu", "name": "cpu", "memory_gb": round(host_memory() / GB, 1)}
    if not torch.cuda.is_available():
        raise MillraceError("there is no CUDA device that torch can use", remedy="Choose cpu")
    facts = torch.cuda.get_device_properties(0)
    return {"kind": "cuda", "name": facts.name, "memory_gb": round(facts.total_memory / GB, 1)}


class TrialSteps:
    """Model, optimiser and updates of a run. Call `meter.begin()` when all else is set up, then `run`.

    With a `world_size` above 1 a lone process trains under DDP too: its gradient buckets stay allocated
    between steps.
    """

    def __init__(self, task: AsrTask, settings: LoopSettings, limit_gb: float, world_size: int = 1) -> None:
        self.task, self.settings = task, settings
        ranks = Ranks.from_environment()
        fabric = devices.launch(ranks, settings, ddp=world_size > 1)
        self.device, self.rank, self.world_size = fabric.device, ranks.rank, fabric.world_size
        self.meter = CudaMeter(limit_gb) if self.device.type == "cuda" else HostMeter(limit_gb)
        self.updates = Updates(task, settings, fabric)
        self.steps, self.heaviest = 0, Shape()

    def soak(self, bucket: int | None, rows: int, steps: int) -> Answer:
        """Step over shuffled batches of `rows` rows of one bucket, or, if that is None, over batches of all
        buckets within the task's budgets."""
        durations, budgets, first = self.task.durations, self.task.budgets, 0
        if bucket is not None:
            first = sum(map(len, durations[:bucket]))
            durations, budgets = [durations[bucket]], [BatchBudget(seconds=None, rows=rows)]
        plan = SoakPlan(durations, budgets, steps, self.task.options.seed, self.world_size, first)
        batches = iter(self.task.batches(plan, 0, self.rank))
        self.meter.begin()
        return self.run(batches, stop=self.world_size == 1)

    def run(self, batches: Iterable[Batch], stop: bool = False) -> Answer:
        """Step over all batches and report their memory. Ends when memory runs out (`oom`) and, with `stop`,
        after the first step above the limit; other errors are raised."""
        last, highest = Shape(), 0
        try:
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
            message = " ".join(str(error).split())[:300] or type(error).__name__
            error.__traceback__ = None  # its frames hold the tensors of the step
            heaviest = {"step": self.steps + 1, **last}
            return {"oom": True, "steps": self.steps, "heaviest": heaviest, "message": message}
        facts = self.meter.facts()
        retried = bool(facts.get("retries"))
        return {"oom": False, "retried": retried, "steps": self.steps, "heaviest": self.heaviest, **facts}

    def _step(self, prepared: Prepared) -> None:
        """One optimiser step. With accumulation it has two equal batches, so that the gradients of the first
        lie beside the activations of the second."""
        updates, count = self.updates, min(self.settings.grad_acc, 2)
        updates.clear()
        total = 0.0
        for micro in range(count):
            prepared = prepared.to(self.device) if self.device.type != "cpu" else prepared
            micro_batch = MicroBatch(prepared, np.asarray(self.task.batch_ids(prepared)))
            more = micro + 1 < count
            loss = updates.forward(micro_batch, more)
            updates.backward(loss, micro_batch, more)
            total += micro_batch.weight
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

    A clip that cannot be read is replaced by the longest that can; a transcript too long for its audio (CTC)
    by the clip's own. Raises MillraceError if no sample can be used.
    """
    rows = task.table.rows([audio_rows[at % len(audio_rows)] for at in range(count)])
    texts = task.table.rows([text_rows[at % len(text_rows)] for at in range(count)])
    reader = BucketedDataset(task.table).reader
    raws = dict(zip(rows, reader.read_many([(row.tar, row.offset, row.size) for row in rows]), strict=True))
    bad = {row: collate(0, [row], [raws[row]]).bad for row in raws}
    good = [row for row in rows if not bad[row]]
    if not good:
        first = bad[rows[0]][0]
        raise MillraceError(
            f"none of the longest {len(rows)} samples can be used ({first.reason}: {first.message})",
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


def shape(batch: Batch) -> Shape:
    """Rows, padded seconds, and characters a row."""
    characters = sum(map(len, batch.transcripts)) / max(len(batch), 1)
    return {"rows": len(batch), "seconds": batch.audio.shape[1] / SAMPLING_RATE, "characters": characters}


class SoakPlan:
    """At least `steps` steps of as many epochs as that takes, in their shuffled order. A Plan for
    BucketedDataset.

    `durations`: seconds of the rows of every bucket that takes part; `first` is the number of the first row
    of the first one. An epoch with more steps gives evenly spaced ones, and the heaviest of every bucket.
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
