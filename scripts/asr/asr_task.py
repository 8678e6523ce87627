"""ASR as a task of the training loop: rows, plans, batches, model, loss, error rates."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from scripts.asr import baseline_loader, memory_meter, planner
from scripts.asr import model as models
from scripts.asr.asr_model import AsrModel, Prepared
from scripts.asr.baseline_loader import BaselineLoader, BaselinePlan
from scripts.asr.batch_loader import BatchLoader
from scripts.asr.budgets import read_budgets
from scripts.asr.dataset import BucketedDataset
from scripts.asr.ideal_loader import IdealLoader
from scripts.asr.plan import Plan
from scripts.asr.row_table import RowTable
from scripts.asr.transcripts import ErrorCounts, count_errors
from scripts.common.cli import log
from scripts.common.errors import MillraceError
from scripts.common.task import Spans

# Transcripts that a vocabulary is made of, at most: evenly spaced rows.
_VOCABULARY_ROWS = 200_000


# `baseline` is the naive pipeline, `ideal` repeats batches from memory: both are there to compare with.
LOADERS = ("bucketed", "baseline", "ideal")


@dataclass(frozen=True)
class TrainOptions:
    """What an ASR run reads and how. `bucket_config` is calibrated_bs.json, or empty: then `batch_seconds` counts."""

    bucket_dir: str
    bucket_config: str = ""
    model: str = "ctc"
    model_options: Mapping[str, Any] = field(default_factory=dict)
    batch_seconds: float = 240.0
    window: int = planner.WINDOW
    num_workers: int = 2
    prefetch_factor: int = 4
    max_open_tars: int = 64
    max_bad_fraction: float = 0.01
    eval_samples: int = 1000
    seed: int = 42
    loader: str = "bucketed"


class AsrTask:
    """Trains on the bucket parquets, evaluates on dev. See scripts.common.task.Task.

    `watch` is put around the batches as they come from the loader, to measure them.
    """

    def __init__(self, options: TrainOptions, watch: Callable[[Iterable], Iterable] = lambda batches: batches) -> None:
        if options.loader not in LOADERS:
            raise MillraceError(f"there is no loader {options.loader!r}", remedy=f"Choose one of {', '.join(LOADERS)}")
        self.options, self.watch = options, watch
        self.table = RowTable.open(options.bucket_dir)
        self.durations = self.table.durations()
        self.budgets = read_budgets(options.bucket_dir, options.bucket_config, options.batch_seconds)
        self._plans: dict[tuple, Plan | BaselinePlan] = {}
        self._loader: BatchLoader | BaselineLoader | None = None
        self._model: AsrModel | None = None

    def build_model(self) -> AsrModel:
        """The model, its vocabulary from the training transcripts where it needs one."""
        count = len(self.table)
        rows = np.unique(np.linspace(0, count - 1, min(count, _VOCABULARY_ROWS)).astype(np.int64)) if count else []
        texts = (row.transcript for at in range(0, len(rows), 1000) for row in self.table.rows(rows[at : at + 1000]))
        self._model = models.build(self.options.model, self.options.model_options, texts)
        log.info("%s: %.1f million parameters", self.options.model, self._model.parameter_count / 1e6)
        return self._model

    def plan(self, epoch: int, world_size: int, spans: Spans = ()) -> Plan | BaselinePlan:
        """The plan of an epoch, or of what is left of it; the last one is kept."""
        key = (epoch, world_size, tuple(spans))
        if key not in self._plans:
            options = self.options
            if options.loader == "baseline":
                size = self.fixed_batch_size()
                plan = BaselinePlan.of(self.table, size, options.seed, epoch, world_size)
                log.info("epoch %d: %d steps of %d random samples", epoch, len(plan), size)
            else:
                arguments = (self.durations, self.budgets, options.seed, epoch, spans, world_size, options.window)
                plan = planner.resume(*arguments)
                log.info("epoch %d: %s", epoch, plan_line(plan))
            self._plans = {key: plan}
        return self._plans[key]

    def fixed_batch_size(self) -> int:
        """The batch size of a pipeline without buckets: that which the longest clips allow."""
        rows = [budget.rows for budget in self.budgets if budget.rows]
        if rows:
            return min(rows)
        longest = max(float(durations.max(initial=0.0)) for durations in self.durations)
        return baseline_loader.fixed_batch_size(self.options.batch_seconds, longest)

    def steps_per_epoch(self, epoch: int, world_size: int, spans: Spans = ()) -> int:
        return len(self.plan(epoch, world_size, spans))

    def batches(self, plan: Plan | BaselinePlan, start_step: int, rank: int) -> Iterable:
        """The decoded batches of a plan on this rank, from `start_step` on; workers live on between epochs."""
        options = self.options
        if self._loader is None and options.loader == "baseline":
            arguments = {"max_open_tars": options.max_open_tars, "max_bad_fraction": options.max_bad_fraction}
            self._loader = BaselineLoader(self.table, plan.batch_size, rank=rank, plan=plan, **arguments)
        if self._loader is None:
            dataset = BucketedDataset(self.table, plan, rank, max_open_tars=options.max_open_tars)
            self._loader = BatchLoader(
                dataset,
                options.num_workers,
                max_bad_fraction=options.max_bad_fraction,
                pin_memory=torch.cuda.is_available(),
                prefetch_batches=options.prefetch_factor,
            )
            if options.bucket_config and not torch.cuda.is_available():
                # Sizes found within a limit of host memory hold only where freed memory goes back.
                memory_meter.return_freed_memory()
        self._loader.plan, self._loader.start_step = plan, start_step
        return self.watch(IdealLoader(self._loader) if options.loader == "ideal" else self._loader)

    def loader(self, epoch: int, start_step: int, rank: int, world_size: int, spans: Spans = ()) -> Iterator[Prepared]:
        for batch in self.batches(self.plan(epoch, world_size, spans), start_step, rank):
            yield self._model.prepare(batch, epoch)

    def batch_ids(self, batch: Prepared) -> np.ndarray:
        return batch.sample_ids[:0] if batch.filler else batch.sample_ids

    def training_step(self, model: AsrModel, batch: Prepared) -> tuple[torch.Tensor, float, Mapping[str, float]]:
        loss, count = model(batch)
        return loss / max(count, 1), float(count), {"samples": len(batch), **batch.counts}

    def evaluate(self, model: AsrModel, fabric: Any) -> dict[str, float]:
        """Loss, CER and WER of the first `eval_samples` rows of dev in a fixed order; on rank 0 only."""
        return self._evaluated(model, fabric.device, "dev") if fabric.global_rank == 0 else {}

    def test(self, model: AsrModel) -> dict[str, float]:
        """Loss, CER and WER of the test split, once, after training."""
        model.eval()
        with torch.no_grad():
            return self._evaluated(model, next(model.parameters()).device, "test")

    def _evaluated(self, model: AsrModel, device: torch.device, split: str) -> dict[str, float]:
        try:
            table = RowTable.open(self.options.bucket_dir, split=split)
        except MillraceError:
            return {}
        durations = [np.concatenate(table.durations())[: self.options.eval_samples]] if len(table) else []
        if not durations or not len(durations[0]):
            return {}
        budget = max(self.budgets, key=lambda budget: budget.seconds or 0)
        plan = planner.plan_epoch(durations, budget, self.options.seed, 0, 1)
        dataset = BucketedDataset(table, plan, max_open_tars=self.options.max_open_tars)
        loss, count, errors = 0.0, 0, ErrorCounts()
        for batch in BatchLoader(dataset, max_bad_fraction=self.options.max_bad_fraction):
            prepared = model.prepare(batch).to(device)
            total, units = model(prepared)
            loss, count = loss + float(total), count + units
            errors += count_errors([model.reference(text) for text in batch.transcripts], model.transcribe(prepared))
        found = {"loss": loss / max(count, 1), "cer": errors.cer, "wer": errors.wer, "samples": len(durations[0])}
        log.info("%s: loss %.3f, CER %.1f %%, WER %.1f %%", split, found["loss"], 100 * errors.cer, 100 * errors.wer)
        return found

    def close(self) -> None:
        """End the workers."""
        if isinstance(self._loader, BatchLoader):
            self._loader.close()

    def state_dict(self) -> dict[str, Any]:
        """A digest of what the plan is made of."""
        options = self.options
        seen = hashlib.sha256(repr((self.budgets, options.seed, options.window, options.loader)).encode())
        for durations in self.durations:
            seen.update(durations.tobytes())
        return {"plan": seen.hexdigest()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state != self.state_dict():
            raise MillraceError(
                "the checkpoint was trained on other buckets, budgets, window or seed than these",
                where=str(Path(self.options.bucket_dir)),
                remedy="Go on with those, or train in another --output_dir",
            )


def plan_line(plan: Plan) -> str:
    """One line for the log."""
    stats = plan.stats()
    return (
        f"{len(plan)} steps on {plan.world_size} ranks, padding {100 * stats['padding']:.2f} %, "
        f"useful work {100 * stats['useful_work']:.1f} %"
    )
