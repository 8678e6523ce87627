"""From a dataset to training: workers, order, resume, shared memory, and the limit on samples left
out."""

from __future__ import annotations

import gc
import os
import zlib
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import numpy as np
import torch
from torch.utils.data import DataLoader

from millrace.common.errors import MillraceError
from millrace.common.loading.arguments import whole
from millrace.common.loading.bad_samples import BadSamples
from millrace.common.loading.plan import BatchRequest, Plan
from millrace.common.loading.slots import BatchSlots
from millrace.common.training import seeding


class BatchDataset(Protocol):
    """What BatchLoader reads batches from: one rank's view of the data, pickled to every worker."""

    plan: Plan | None
    rank: int
    transform: Callable[[Any], Any] | None

    @property
    def rows(self) -> int:
        """All rows there are, of which the plans take some."""

    def __len__(self) -> int:
        """Steps of the plan."""

    def load(self, request: BatchRequest, slots: BatchSlots | None) -> Any:
        """The batch of one step, with `step`, `filler`, `planned` (rows) and `bad` (BadSample)."""

    def check(self, batch: Any) -> None:
        """Raise MillraceError for values that are not trained on; called for a process's first
        batch."""

    def place(self, row: int, message: str) -> str:
        """Where a row stands, for people."""

    def new_slots(self, workers: int, per_worker: int) -> BatchSlots | None:
        """Shared memory for the batches under way; None if batches cross in memory of their own."""


class BatchLoader:
    """Feeds a training loop: the batches of a rank in step order, read and decoded by worker
    processes.

        loader = open_loader("results/asr/buckets", workers=4)  # millrace.asr.planning.loader
        for epoch in range(3):
            loader.set_epoch(epoch)
            for batch in loader:
                loss = model(batch["audio"], batch["lengths"], batch["transcripts"])

    One pass is the rest of the plan from `start_step`. `plans` gives the plan of an epoch by its
    number; without it, set `plan` and `start_step` between passes. Workers live on. After
    `load_state_dict` the next pass goes on where `state_dict` was taken. `bad` counts what was left
    out since the loader was made. Raises MillraceError as the dataset does, and above
    `max_bad_fraction`.
    """

    def __init__(  # noqa: PLR0913 - each is a choice of users, by its name
        self,
        dataset: BatchDataset,
        workers: int = 0,
        start_step: int = 0,
        *,
        plans: Callable[[int], Plan] | None = None,
        max_bad_fraction: float = 0.01,
        start_method: str | None = None,
        pin_memory: bool = False,
        prefetch_batches: int = 4,
    ) -> None:
        workers = whole("workers", workers, least=0)
        self._dataset = dataset
        self.start_step = start_step = whole("start_step", start_step, least=0)
        self._position = start_step
        self._resume_at: int | None = None
        self._pass: object = None  # the latest one
        self._starter = 0  # the process that started the workers
        self.bad = BadSamples(max_bad_fraction, dataset.rows, dataset.place)
        self._feed = _Feed(dataset, workers, plans)
        options = {"num_workers": workers, "pin_memory": pin_memory and torch.cuda.is_available()}
        if workers:
            prefetch_batches = whole("prefetch_batches", prefetch_batches, least=1)
            options |= {"persistent_workers": True, "prefetch_factor": prefetch_batches}
            options |= {
                "multiprocessing_context": start_method,
                "worker_init_fn": seeding.start_worker,
            }
        # What runs the workers: `_feed` is its sampler and its data set.
        self.data_loader = DataLoader(self._feed, batch_size=None, sampler=self._feed, **options)

    def __getstate__(self) -> dict[str, Any]:
        remedy = "Open it in the process that reads"
        raise MillraceError("a loader cannot be pickled or copied", remedy=remedy)

    def close(self) -> None:
        """End the workers and the pass; iterating again starts new ones."""
        self._pass = None
        iterator = getattr(self.data_loader, "_iterator", None)
        self.data_loader._iterator = None
        if iterator is not None:
            iterator._shutdown_workers()

    @property
    def dataset(self) -> BatchDataset:
        """The data set, with its plan: that of epoch 0 is made here, when it is first needed."""
        return self._feed.planned()

    @property
    def plan(self) -> Any:  # a Plan; one that is resumed has more than any Plan has
        return self.dataset.plan

    @plan.setter
    def plan(self, plan: Plan) -> None:
        self._dataset.plan = plan
        self._position = 0
        self._resume_at = None

    def set_epoch(self, epoch: int) -> None:
        """Take the epoch's plan from `plans`; if it is there already, the position in it stays."""
        epoch = whole("epoch", epoch)
        plans = self._feed.plans
        if epoch == (0 if self._dataset.plan is None else self.plan.epoch):
            return
        if plans is None:
            problem = (
                f"the loader has a plan of epoch {self.plan.epoch} only, and no `plans` for epoch"
                f" {epoch}"
            )
            raise MillraceError(problem, remedy="Give BatchLoader plans, a function of the epoch")
        self.plan = plans(epoch)
        self.start_step = 0

    def state_dict(self) -> dict[str, int]:
        """The epoch, the step after the last batch that was handed out, and a checksum of the
        plan."""
        plan = self.plan
        checksum = zlib.crc32(plan.offsets, zlib.crc32(plan.rows, plan.world_size))
        return {
            "epoch": plan.epoch,
            "step": self._position,
            "plan_crc32": checksum,
        }

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Let the next pass begin where `state` was taken; MillraceError if the plan is another one
        now."""
        self.set_epoch(state["epoch"])
        steps = range(len(self.plan) + 1)
        if state["step"] not in steps or self.state_dict() != {**state, "step": self._position}:
            problem = f"the loader's state of epoch {state['epoch']} belongs to another plan"
            raise MillraceError(
                problem, remedy="Take the data, settings, seed and ranks of that run"
            )
        self._position = self._resume_at = state["step"]

    @property
    def slots(self) -> BatchSlots | None:
        """The shared memory of the workers there are; None before the first pass, and if there is
        no room."""
        return self._feed.slots

    def __len__(self) -> int:
        return max(0, len(self.dataset) - self.start_step)

    def __iter__(self) -> Iterator[Any]:
        # A resumed pass begins once in the middle; `len` stays that of a whole pass, as trainers
        # expect.
        this_pass = self._pass = object()
        process = os.getpid()
        dataset = self.dataset  # with its plan, before the feed asks for it
        plan = dataset.plan
        start = self._resume_at
        self._resume_at = None
        self._position = self._feed.start_step = self.start_step if start is None else start
        has_workers = getattr(self.data_loader, "_iterator", None) is not None
        if has_workers and self._starter != process:
            problem = "its workers belong to the process that this one was forked from"
            raise MillraceError(problem, remedy="Open a loader in each process")
        if self.data_loader.num_workers and not has_workers:
            self._starter = process
            # New ones for new workers: workers that were ended may have left theirs taken.
            # For the batches under way, the one in the trainer's hands, and the one being written.
            workers = self.data_loader.num_workers
            slots = self.data_loader.prefetch_factor + 2
            self._feed.slots = dataset.new_slots(workers, slots)
            if torch.cuda.is_initialized():
                # CUDA aborts a forked worker that frees an event, which a cycle of before may hold.
                gc.collect()
        for batch, result in self.data_loader:
            if isinstance(batch, MillraceError):
                raise batch
            self.bad.add(batch)
            self.bad.check()
            if dataset.plan is plan:  # no other was set meanwhile
                self._position = batch.step + 1
            yield result
            if self._pass is not this_pass or os.getpid() != process:
                # Workers give their batches to one pass in one process, and the position is its.
                problem = (
                    "the pass cannot go on: the loader was closed, another pass over it has begun,"
                    " or this process was forked since"
                )
                raise MillraceError(problem, f"step {batch.step}", "Open a loader for each pass")


class _Feed:
    """Both ends of a DataLoader: the sampler of requests in the trainer, the dataset in the
    workers."""

    def __init__(
        self, dataset: BatchDataset, workers: int, plans: Callable[[int], Plan] | None
    ) -> None:
        self.dataset = dataset
        self.workers = workers
        self.start_step = 0
        self.plans = plans
        self.slots: BatchSlots | None = None
        self._checked = 0  # the process whose first batch was checked

    def __getstate__(self) -> dict[str, Any]:
        # Workers are told which rows to read; a function that plans may not be sent.
        return {**self.__dict__, "plans": None}

    def planned(self) -> BatchDataset:
        """The data set with a plan: that of epoch 0 if it has none yet.

        A loader that takes a state first makes the plan of that state only.
        """
        if self.dataset.plan is None and self.plans is not None:
            self.dataset.plan = self.plans(0)
        return self.dataset

    def __iter__(self) -> Iterator[BatchRequest]:
        dataset = self.planned()
        plan = dataset.plan
        if plan is None:
            remedy = "Give the data set a plan, or BatchLoader plans, a function of the epoch"
            raise MillraceError("the data set has no plan", remedy=remedy)
        steps = len(dataset)
        epoch = getattr(plan, "epoch", 0)
        for step in range(self.start_step, steps):
            rows = self._rows(plan, step)
            # A DataLoader deals steps to its workers in turn.
            ahead = step + max(self.workers, 1)
            following = self._rows(plan, ahead) if ahead < steps else None
            yield BatchRequest(step, rows, plan.is_filler(step, dataset.rank), following, epoch)

    def _rows(self, plan: Plan, step: int) -> np.ndarray:
        """The rows of a batch. Raises MillraceError for those that the data set does not have."""
        rows = plan.batch(step, self.dataset.rank)
        if len(rows) and not 0 <= rows.min() <= rows.max() < self.dataset.rows:
            problem = f"the plan names rows {rows.min()} to {rows.max()} of {self.dataset.rows}"
            remedy = "Make plan and data set of the same rows"
            raise MillraceError(problem, f"step {step}", remedy)
        return rows

    def __getitem__(self, request: BatchRequest) -> tuple[Any, Any]:
        """The batch, which is counted, and what the trainer gets: the same unless there is a
        transform."""
        try:
            batch = self.dataset.load(request, self.slots)
            if self._checked != os.getpid():
                self.dataset.check(batch)
                self._checked = os.getpid()
            return batch, self.dataset.transform(batch) if self.dataset.transform else batch
        except StopIteration as error:
            # It would end the pass, as if all batches had come.
            raise RuntimeError("`decode` or `transform` raised StopIteration") from error
        except MillraceError as error:
            # Returned: raised, it would cross as a traceback in one string.
            return MillraceError(error.problem, error.where, error.remedy), None
