"""What a trial trains on while its memory is measured: the worst batch again and again, or a soak
of shuffled ones; and the verification of all buckets on all ranks."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from millrace.asr.calibration.options import Choices
from millrace.asr.calibration.search import Answer, Device, Search
from millrace.asr.loading.collate import Batch, collate
from millrace.asr.loading.dataset import BucketedDataset
from millrace.asr.models.base import AsrModel, Prepared
from millrace.asr.planning import planner
from millrace.asr.planning.cut import BatchBudget, batch_cost
from millrace.asr.planning.plan import ChosenSteps, Plan
from millrace.asr.training.options import TrainOptions
from millrace.asr.training.task import AsrTask
from millrace.common import atomic
from millrace.common.cli import log
from millrace.common.errors import MillraceError, counted
from millrace.common.loading.decode import SAMPLING_RATE
from millrace.common.machine.memory import GB, CudaMeter, HostMeter, host_memory, is_out_of_memory
from millrace.common.training import devices
from millrace.common.training.ranks import Exchange, Ranks
from millrace.common.training.settings import LoopSettings
from millrace.common.training.task import MicroBatch
from millrace.common.training.updates import Updates

_LOWER = "Calibrate with --world-size as here and a lower --max-memory-gb, and merge again"


def answer(request: Mapping[str, Any]) -> Answer | Device:
    """What a trial answers to a request, by its `kind`. Raises MillraceError.

    `device`: the facts of that device. `worst`: `steps` steps of one batch of `rows` samples, of
    the longest `audio_rows` and `text_rows`. `soak`: `steps` steps of shuffled batches of `rows` of
    bucket number `bucket`. Both need TrainOptions as `options`, LoopSettings as `settings`,
    `limit_gb` and `world_size`.
    """
    if request["kind"] == "device":
        return device_facts(request["device"])
    settings = LoopSettings(**request["settings"])
    task = AsrTask(TrainOptions(**request["options"]), settings.device)
    steps = TrialSteps(task, settings, request["limit_gb"], request["world_size"])
    if request["kind"] == "soak":
        return steps.soak(request["bucket"], request["rows"], request["steps"])
    longest = (request["audio_rows"], request["text_rows"])
    batch = worst_batch(task, steps.updates.model, *longest, request["rows"])
    steps.meter.begin()
    return steps.run([batch] * request["steps"])


@devices.leaving_together()
def verify(choices: Choices, output: Path) -> None:
    """Soak all buckets of the calibration on this rank; rank 0 writes `output`: every rank's peak
    and steps.

    Raises MillraceError, on every rank, if any rank went out of memory or above the limit.
    """
    where = str(choices.options.calibration)
    with devices.peers(Ranks.from_environment(), where):
        device = device_facts(choices.settings.device)
        settings = devices.resolved(replace(choices.settings, device=device["kind"]))
        limit = choices.limit_gb(device)
        with contextlib.closing(AsrTask(choices.options, settings.device)) as task:
            steps = TrialSteps(task, settings, limit)
            result = steps.soak(None, 0, max(choices.soak_steps, 1))
        over = result["oom"] or result["peak_gb"] > limit
        problem = f"rank {steps.rank}: {Search(limit, 0).why_not(result)}" if over else ""
        if result["oom"] and steps.world_size > 1:
            # The others wait in the middle of a step: they end when this rank's sockets close.
            raise MillraceError(problem, where, _LOWER)
        ranks = Exchange(steps.world_size).gathered(
            {"rank": steps.rank, "problem": problem, **result}
        )
    problems = [rank["problem"] for rank in ranks if rank["problem"]]
    if problems:
        raise MillraceError("; ".join(problems), where, _LOWER)
    if steps.rank == 0:
        peak = max(rank["peak_gb"] for rank in ranks)
        facts = {
            "device": device["name"],
            "limit_gb": limit,
            "world_size": steps.world_size,
            "steps": result["steps"],
            "peak_memory_gb": peak,
            "ranks": ranks,
        }
        atomic.write_json(output, facts)
        count = counted(steps.world_size, "rank")
        log.info("%s, %d steps: peak %.3f GB", count, result["steps"], peak)


def device_facts(device: str) -> Device:
    """Kind, name and memory of a device. Raises MillraceError if cuda is asked for and there is
    none."""
    kind = devices.kind_of(device)
    name = "cpu"
    memory = host_memory()
    if kind == "cuda":
        if not torch.cuda.is_available():
            raise MillraceError("there is no CUDA device that torch can use", remedy="Choose cpu")
        name = torch.cuda.get_device_name(0)
        memory = torch.cuda.get_device_properties(0).total_memory
    return {
        "kind": kind,
        "name": name,
        "memory_gb": round(memory / GB, 1),
        "precision": devices.auto_precision(kind),
    }


class TrialSteps:
    """Model, optimiser and updates of a run. Call `meter.begin()` when all else is set up, then
    `run`.

    A lone process of a `world_size` above 1 trains under DDP too: gradient buckets stay between
    steps.
    """

    def __init__(
        self,
        task: AsrTask,
        settings: LoopSettings,
        limit_gb: float,
        world_size: int = 1,
    ) -> None:
        self.task = task
        self.settings = settings
        ranks = Ranks.from_environment()
        fabric = devices.launch(ranks, settings, ddp=world_size > 1)
        self.device = fabric.device
        self.rank = ranks.rank
        self.world_size = fabric.world_size
        self.meter = CudaMeter(limit_gb) if self.device.type == "cuda" else HostMeter(limit_gb)
        self.updates = Updates(task, settings, fabric)
        self.steps = 0

    def soak(
        self,
        bucket: int | None,
        rows: int,
        steps: int,
    ) -> Answer:
        """Step over shuffled batches: of `rows` rows of `bucket`, or of all buckets by the task's
        budgets."""
        durations = self.task.durations
        budgets = self.task.budgets
        first = 0
        if bucket is not None:
            first = sum(map(len, durations[:bucket]))
            durations = [durations[bucket]]
            budgets = [BatchBudget(seconds=None, rows=rows)]
        of_epoch = partial(planner.plan_epoch, durations, budgets, self.task.options.seed)
        plans = (of_epoch(epoch, self.world_size) for epoch in itertools.count())
        soak = soak_steps(plans, steps, first)
        batches = iter(self.task.batches(soak, 0, self.rank))
        self.meter.begin()
        return self.run(batches, stop=self.world_size == 1)

    def run(
        self,
        batches: Iterable[Batch],
        stop: bool = False,
    ) -> Answer:
        """Step over all batches, but not on when memory runs out (`oom`) or, with `stop`, is above
        the limit.

        Other errors are raised.
        """
        heaviest: dict[str, float] = {}
        shape: dict[str, float] = {}
        highest = 0.0
        try:
            for batch in batches:
                shape = _shape(batch)
                self._step(self.updates.model.prepare(batch))
                self.steps += 1
                peak = self.meter.peak()
                if peak > highest:
                    highest = peak
                    heaviest = {"step": self.steps, **shape}
                if stop and peak > self.meter.limit:
                    break
        except (RuntimeError, MemoryError, OSError) as error:
            if not is_out_of_memory(error):
                raise
            message = " ".join(str(error).split())[:300] or type(error).__name__
            error.__traceback__ = None  # its frames hold the tensors of the step
            last = {**shape, "step": self.steps + 1}
            return {
                "oom": True,
                "steps": self.steps,
                "heaviest": last,
                "message": message,
            }
        facts = {
            "steps": self.steps,
            "heaviest": heaviest,
            **self.meter.facts(),
        }
        return cast("Answer", {"oom": False, "retried": bool(facts.get("retries")), **facts})

    def _step(self, prepared: Prepared) -> None:
        # Accumulated, of two equal batches: gradients of the first lie beside activations of the
        # second.
        updates = self.updates
        count = min(self.settings.grad_acc, 2)
        total = 0.0
        updates.clear()
        for micro in range(count):
            if self.device.type != "cpu":
                prepared = prepared.to(self.device)
            batch = MicroBatch(prepared, np.asarray(self.task.batch_ids(prepared)))
            more = micro + 1 < count
            loss = updates.forward(batch, more)
            updates.backward(loss, batch, more)
            total += batch.weight
        if self.world_size > 1:
            summed = torch.tensor(total, dtype=torch.float64, device=self.device)
            torch.distributed.all_reduce(summed)
            total = float(summed)
        if total > 0:
            updates.apply(total, count, self.steps + 1, 0.01)


def _shape(batch: Batch) -> dict[str, float]:
    """Rows of a batch, the seconds that they are padded to, and the characters a row."""
    rows = len(batch)
    characters = sum(map(len, batch.transcripts))
    return {
        "rows": rows,
        "seconds": batch.audio.shape[1] / SAMPLING_RATE,
        "characters": characters / max(rows, 1),
    }


def worst_batch(
    task: AsrTask,
    model: AsrModel,
    audio: list[int],
    texts: list[int],
    count: int,
) -> Batch:
    """`count` samples: the longest audio, each with one of the longest transcripts.

    A clip that cannot be read is replaced by the longest that can; a transcript too long for its
    audio (CTC) by the clip's own. Raises MillraceError if no sample can be used.
    """
    rows = task.table.rows([audio[place % len(audio)] for place in range(count)])
    text_rows = task.table.rows([texts[place % len(texts)] for place in range(count)])
    reader = BucketedDataset(task.table).reader
    contents = reader.read_many([(row.tar, row.offset, row.size) for row in rows])
    raws = dict(zip(rows, contents, strict=True))
    bad = {row: collate(0, [row], [raws[row]]).bad for row in raws}
    good = [row for row in rows if not bad[row]]
    if not good:
        first = bad[rows[0]][0]
        problem = (
            f"none of the longest {len(rows)} samples can be used ({first.reason}: {first.message})"
        )
        remedy = "Mend or remove these samples and build the buckets again"
        raise MillraceError(problem, str(task.options.bucket_dir), remedy)

    repeats = -(-count // len(good))
    rows = (good * repeats)[:count]
    paired = [
        row._replace(transcript=text.transcript, prompt=text.prompt)
        for row, text in zip(rows, text_rows, strict=True)
    ]
    batch = collate(0, paired, [raws[row] for row in rows])
    unfit = {sample for sample, _ in model.prepare(batch).dropped}
    if not unfit:
        return batch
    for place, row in enumerate(rows):
        if row.sample_id in unfit:
            paired[place] = row
    return collate(0, paired, [raws[row] for row in rows])


def soak_steps(epochs: Iterator[Plan], steps: int, first: int = 0) -> ChosenSteps:
    """At least `steps` steps of as many epochs as that takes, in their shuffled order.

    `epochs` are their plans, without end. An epoch with more steps gives evenly spaced ones, and
    the heaviest of every bucket.
    """
    chosen: list[tuple[Plan, int]] = []
    while len(chosen) < steps:
        plan = next(epochs)
        wanted = min(steps - len(chosen), len(plan))
        spaced = np.linspace(0, len(plan) - 1, wanted).astype(int)
        numbers = set(spaced.tolist())
        if not chosen:
            # The step of each bucket in which any rank has the most padded work.
            cost = batch_cost(np.diff(plan.offsets), plan.longest)
            cost = cost.reshape(len(plan), plan.world_size)
            buckets = np.asarray(plan.bucket).reshape(cost.shape)
            for bucket in np.unique(buckets):
                of_bucket = np.where(buckets == bucket, cost, -1)
                numbers.add(int(of_bucket.max(axis=1).argmax()))
        chosen += [(plan, number) for number in sorted(numbers)]
    return ChosenSteps(chosen, first)
