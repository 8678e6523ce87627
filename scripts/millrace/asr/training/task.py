"""ASR as a task of the training loop: plans, batches, loss, evaluation of dev and test, the score
of the best, and how many transcripts a vocabulary is made of."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from millrace.asr.buckets import eval_file
from millrace.asr.buckets.config import BucketConfig
from millrace.asr.evaluation.hypotheses import Transcribed
from millrace.asr.loading.collate import Batch
from millrace.asr.loading.dataset import BucketedDataset
from millrace.asr.loading.row_table import Row, RowTable
from millrace.asr.models import registry as models
from millrace.asr.models.base import AsrModel, Prepared, PrepareInWorker
from millrace.asr.planning import planner
from millrace.asr.planning.budgets import read_budgets
from millrace.asr.planning.cut import BatchBudget
from millrace.asr.planning.plan import ChosenSteps, Plan
from millrace.asr.throughput.loaders import BaselineLoader, BaselinePlan
from millrace.asr.training.options import TrainOptions
from millrace.common import settings
from millrace.common.cli import log
from millrace.common.error_rates import ErrorCounts, count_errors
from millrace.common.errors import MillraceError, counted
from millrace.common.loading.loader import BatchLoader
from millrace.common.loading.plan import Plan as LoaderPlan
from millrace.common.loading.task_loader import HeldOut, TaskLoader, TaskModel
from millrace.common.machine import memory as memory_meter
from millrace.common.training import devices
from millrace.common.training.ranks import Exchange
from millrace.common.training.task import Spans, Task

_VOCABULARY_ROWS = 200_000  # transcripts that a vocabulary is made of, at most: evenly spaced rows
_EVALUATION_WORKERS = 4  # beside those of training, which wait meanwhile
_MAX_LOGGED = 20  # samples without part in the loss; all are counted in metrics.jsonl


class AsrTask(Task):
    """Trains on the bucket parquets, evaluates on dev. `device` is that of the loop's settings."""

    def __init__(
        self,
        options: TrainOptions,
        device: str = "auto",
    ) -> None:
        self.options = options
        self.on_gpu = devices.kind_of(device) == "cuda"
        # Put around the batches as they come from the loader, to measure them.
        self.watch: Callable[[Iterable], Iterable] = lambda batches: batches
        self.table = RowTable.open(options.bucket_dir)
        self.durations = self.table.durations()
        self.budgets = read_budgets(options.bucket_dir, options.calibration, options.batch_seconds)
        self._plans: dict[tuple, Plan | ChosenSteps | BaselinePlan] = {}
        self._model: AsrModel | None = None
        self._tables: dict[str, RowTable | None] = {}
        self._logged: set[int] = set()
        # What the last evaluation of each split has written, on every rank.
        self.transcribed: dict[str, list[Transcribed]] = {}

    def build_model(self) -> AsrModel:
        """The model, its vocabulary from the training transcripts if it needs one."""
        self._model = models.build(self.options.model, self.options.model_options, self._texts())
        log.info(
            "%s: %.1f million parameters", self.options.model, self._model.parameter_count / 1e6
        )
        return self._model

    def _texts(self) -> Iterator[str]:
        """The transcripts that a vocabulary is made of."""
        count = len(self.table)
        spaced = np.linspace(0, max(count - 1, 0), min(count, _VOCABULARY_ROWS))
        rows = np.unique(spaced.astype(np.int64))
        for row in _rows(self.table, rows):
            yield row.transcript

    def plan(
        self,
        epoch: int,
        world_size: int,
        spans: Spans = (),
    ) -> Plan | ChosenSteps | BaselinePlan:
        """The plan of an epoch, or of its rest after `spans`; the last plan is kept."""
        key = (epoch, world_size, tuple(spans))
        if key not in self._plans:
            if self.options.loader == "baseline":
                self._plans = {key: self._baseline_plan(epoch, world_size)}
            else:
                self._plans = {key: self._bucketed_plan(epoch, world_size, spans)}
        return self._plans[key]

    def _baseline_plan(self, epoch: int, world_size: int) -> BaselinePlan:
        size = self.fixed_batch_size()
        plan = BaselinePlan(self.table, size, self.options.seed, epoch, world_size)
        log.info("epoch %d: %d steps of %d random samples", epoch, len(plan), size)
        return plan

    def _bucketed_plan(
        self,
        epoch: int,
        world_size: int,
        spans: Spans,
    ) -> Plan | ChosenSteps:
        options = self.options
        is_check = options.loader == "every-bucket"
        if is_check and spans:
            problem = "a check cannot go on with another number of ranks"
            remedy = "Begin it in another --output-dir"
            raise MillraceError(problem, "--loader every-bucket", remedy)

        def whole(ranks: int) -> Plan:
            return planner.plan_epoch(
                self.durations, self.budgets, options.seed, epoch, ranks, options.window
            )

        plan = planner.plan_rest(whole, spans, world_size)
        stats = plan.stats()
        line = "epoch %d: %d steps on %s, padding %.2f %%, useful work %.1f %%"
        ranks = counted(plan.world_size, "rank")
        shares = (100 * stats["padding"], 100 * stats["useful_work"])
        log.info(line, epoch, len(plan), ranks, *shares)
        return planner.every_bucket_first(plan) if is_check else plan

    @property
    def bucket_rows(self) -> dict[str, int]:
        """The number of rows of each bucket."""
        names = BucketConfig.read(self.options.bucket_dir).ids
        return dict(zip(names, map(len, self.durations), strict=True))

    def fixed_batch_size(self) -> int:
        """The batch size of a pipeline without buckets: how many of the longest clip fit its
        bucket's budget.

        More would not fit the memory that the buckets were given, as any batch may get the longest
        clips.
        """
        batches = self._largest_batches()
        size, _ = max(batches, key=lambda batch: batch[1], default=(1, 0.0))
        return size

    def mixed_budget(self) -> BatchBudget:
        """One budget for clips of all lengths: the least that any bucket's longest clips were
        given."""
        return BatchBudget(seconds=min(rows * seconds for rows, seconds in self._largest_batches()))

    def _largest_batches(self) -> list[tuple[int, float]]:
        """(rows, seconds) of a batch of the longest clips, for each bucket that has any."""
        batches = []
        for budget, seconds in zip(self.budgets, self.durations, strict=True):
            if len(seconds):
                longest = seconds.max()
                (rows,) = budget.most_rows(np.array([longest]))
                batches.append((max(int(rows), 1), float(longest)))
        return batches

    def batches(
        self,
        plan: LoaderPlan,
        start_step: int,
        rank: int,
    ) -> Iterable:
        """The decoded batches of a plan on this rank, from `start_step` on. Workers outlive
        epochs."""
        if self._loader is None and self.options.loader == "baseline":
            self._loader = self._baseline_loader(plan, rank)
        loader = self.batch_loader(rank)
        loader.plan = plan
        loader.start_step = start_step
        return self.watch(loader)

    def _baseline_loader(self, plan: LoaderPlan, rank: int) -> BaselineLoader:
        assert isinstance(plan, BaselinePlan)  # see `plan`
        return BaselineLoader(
            self.table,
            plan,
            rank,
            max_open_tars=self.options.max_open_tars,
            max_bad_fraction=self.options.max_bad_fraction,
        )

    def batch_loader(self, rank: int) -> BatchLoader | BaselineLoader:
        """What reads the batches of all plans on this rank."""
        if self._loader is None:
            options = self.options
            # Tokenising and layout happen where the batch is decoded.
            transform = PrepareInWorker(self._model.preparer) if self._model else None
            dataset = BucketedDataset(
                self.table, rank=rank, max_open_tars=options.max_open_tars, transform=transform
            )
            self._loader = BatchLoader(
                dataset,
                options.num_workers,
                max_bad_fraction=options.max_bad_fraction,
                # Pinning makes a context on a GPU, also where the CPU trains.
                pin_memory=self.on_gpu,
                prefetch_batches=options.prefetch_factor,
            )
            if options.calibration and not self.on_gpu:
                # Sizes found within a limit of host memory hold only if freed memory goes back.
                memory_meter.return_freed_memory()
        return self._loader

    def loader(
        self, epoch: int, start_step: int, rank: int, world_size: int, spans: Spans = ()
    ) -> Iterator[Prepared]:
        """The batches of `plan`, prepared for the model; what takes no part in the loss is
        logged."""
        assert self._model is not None  # built before anything is loaded for it
        for batch in self.batches(self.plan(epoch, world_size, spans), start_step, rank):
            prepared = self._model.prepare(batch)
            row_of = dict(zip(batch.sample_ids.tolist(), batch.rows.tolist(), strict=True))
            for sample, reason in prepared.dropped:
                self._log_dropped(sample, row_of[sample], reason.replace("_", " "))
            yield prepared

    def _log_dropped(self, sample: int, row: int, why: str) -> None:
        if sample in self._logged or len(self._logged) >= _MAX_LOGGED:
            return
        self._logged.add(sample)
        if len(self._logged) == _MAX_LOGGED:
            why += "; of further ones metrics.jsonl has the counts"
        log.warning("%s takes no part in the loss: %s", self.table.place(row), why)

    def batch_ids(self, batch: Prepared) -> np.ndarray:
        """uint64 ids of the samples; none for a filler."""
        if batch.filler:
            return batch.sample_ids[:0]
        return batch.sample_ids

    def training_step(
        self,
        model: AsrModel,
        batch: Prepared,
    ) -> tuple[torch.Tensor, float, Mapping]:
        """(mean loss, the number of units it is a mean over, counts for the meters) of a batch."""
        loss, count = model(batch)
        return loss / max(count, 1), float(count), batch.counts

    def score(self, metrics: Mapping[str, float]) -> float | None:
        """By which the best checkpoint is chosen: the character error rate of dev."""
        return metrics.get("cer")

    def evaluate(self, model: AsrModel, fabric: Any) -> dict[str, float]:
        """Loss, CER and WER of the first `eval_samples` rows of dev, in a fixed order, by all
        ranks."""
        return self.evaluate_split(model, fabric.device, "dev", self.exchange, fabric.global_rank)

    def test(
        self,
        model: AsrModel,
        precision: str,
        split: str = "test",
    ) -> dict[str, float]:
        """`evaluate` on the test split, after training, on this rank alone: the others may have
        left. `precision` is the run's, so that the figures compare with those of dev."""
        model.eval()
        device = next(model.parameters()).device
        with torch.no_grad(), devices.autocast(device.type, precision):
            return self.evaluate_split(model, device, split, Exchange(1), 0)

    def held_out(self, split: str) -> RowTable | None:
        """The rows of dev or test; None if the buckets have no such split, or no rows in it. Raises
        MillraceError if they cannot be read: call it before training, not after."""
        if split not in self._tables:
            folder: str | Path = self.options.bucket_dir
            name = split
            if split == "dev" and self.options.eval_file:
                folder, name = eval_file.find(self.options.eval_file, folder)
            table = None
            if name in BucketConfig.read(folder).splits:
                table = RowTable.open(folder, split=name)
            self._tables[split] = table if table is not None and len(table) else None
        return self._tables[split]

    def evaluate_split(
        self,
        model: AsrModel,
        device: torch.device,
        split: str,
        exchange: Exchange,
        rank: int,
    ) -> dict[str, float]:
        """`evaluate` for dev or test, with the other ranks of `exchange`; {} without such a
        split."""
        table = self.held_out(split)
        if table is None:
            return {}
        durations = np.concatenate(table.durations())[: self.options.eval_samples]
        plan = planner.plan_epoch(
            [durations], self.mixed_budget(), self.options.seed, 0, exchange.world_size
        )
        dataset = BucketedDataset(
            table,
            plan,
            rank,
            max_open_tars=self.options.max_open_tars,
            transform=PrepareInWorker(model.preparer),
        )
        # Unusable samples are logged and counted; a long training must not fail for them.
        workers = min(self.options.num_workers, _EVALUATION_WORKERS, len(plan))
        with contextlib.closing(BatchLoader(dataset, workers, max_bad_fraction=1.0)) as loader:
            sums, written = _evaluated(model, device, loader)

        # Plain values, as the ranks exchange no objects.
        rows = [(*sample[:-1], astuple(sample.errors)) for sample in written]
        parts = exchange.gathered((sums.tolist(), rows))
        loss, units, samples = np.sum([part for part, _ in parts], axis=0).tolist()
        rows = [row for _, of_rank in parts for row in of_rank]
        transcribed = [Transcribed(*row[:-1], ErrorCounts(*row[-1])) for row in rows]
        self.transcribed[split] = transcribed
        errors = sum((sample.errors for sample in transcribed), ErrorCounts())
        figures: dict[str, float] = {"samples": int(samples)}
        if units:
            figures = {
                "loss": loss / units,
                "cer": errors.cer,
                "wer": errors.wer,
                **figures,
            }
        if samples < len(durations):
            figures["left_out"] = len(durations) - int(samples)
        return figures

    def state_dict(self) -> dict[str, Any]:
        """Digests of what the plan and the vocabulary are made of, and of the latter's transcripts
        alone."""
        return {"plan": self._digest, "texts": self.texts_digest}

    @cached_property
    def texts_digest(self) -> str:
        """A digest of the transcripts that a vocabulary is made of."""
        digest = hashlib.sha256()
        for text in self._texts():
            raw = text.encode()
            digest.update(len(raw).to_bytes(8, "little") + raw)
        return digest.hexdigest()

    @cached_property
    def _digest(self) -> str:
        options = self.options
        chosen = (self.budgets, options.seed, options.window, options.loader, self.table.digest)
        return hashlib.sha256(repr(chosen).encode()).hexdigest()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Raises MillraceError if plan or vocabulary would now be others."""
        if state["plan"] != self._digest:
            differing = "samples, transcripts, budgets, window, loader or seed"
            problem = f"the checkpoint was trained on other {differing} than these"
            remedy = "Go on with those, or train in another --output-dir"
            raise MillraceError(problem, str(Path(self.options.bucket_dir)), remedy)


def _evaluated(
    model: AsrModel,
    device: torch.device,
    batches: Iterable[Batch],
) -> tuple[np.ndarray, list[Transcribed]]:
    """Sums of loss, units and samples, and what the model has written."""
    sums = np.zeros(3)
    written: list[Transcribed] = []
    for batch in batches:
        if batch.filler:
            continue
        prepared = model.prepare(batch).to(device)
        total, units = model(prepared)
        sums += (float(total), units, len(batch))
        columns = zip(
            batch.rows.tolist(),
            batch.sample_ids.tolist(),
            batch.languages,
            batch.duration_s.tolist(),
            [model.reference(text) for text in batch.transcripts],
            model.transcribe(prepared),
            strict=True,
        )
        for row, sample, language, seconds, reference, text in columns:
            edits = count_errors([reference], [text])
            written.append(Transcribed(row, sample, language, seconds, reference, text, edits))
    return sums, written


def _options(
    bucket_dir: str,
    given: Mapping[str, Any],
) -> TrainOptions:
    return settings.parsed(TrainOptions, {"bucket_dir": bucket_dir, **given})


def audited(bucket_dir: str, **given: Any) -> TaskLoader:
    """What the audit looks at: the batches of a run with these flags. The model has no weights."""
    task = AsrTask(_options(bucket_dir, given))
    with torch.device("meta"):
        task.build_model()
    return TaskLoader(task, names=lambda: _sample_ids(task.table))


def audited_validation(bucket_dir: str, **given: Any) -> HeldOut:
    """The samples that such a run is evaluated on."""
    table = AsrTask(_options(bucket_dir, given)).held_out("dev")
    return HeldOut(lambda: _sample_ids(table) if table else ())


def audited_model(bucket_dir: str, **given: Any) -> TaskModel:
    """The model of such a run."""
    return TaskModel(AsrTask(_options(bucket_dir, given)))


def _rows(table: RowTable, numbers: Sequence[int] | np.ndarray) -> Iterator[Row]:
    """The rows of these numbers, of which only some are in memory at a time."""
    for start in range(0, len(numbers), 1000):
        yield from table.rows(numbers[start : start + 1000])


def _sample_ids(table: RowTable) -> Iterator[str]:
    for row in _rows(table, range(len(table))):
        yield str(row.sample_id)
