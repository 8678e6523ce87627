"""The batches of a plan, read and decoded where this runs: when sound is on a wrong scale, how many
bad samples are logged, how much shared memory a batch gets."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, get_worker_info

from millrace.asr.loading.collate import Batch, collate
from millrace.asr.loading.reader import IndexedTarReader
from millrace.asr.loading.row_table import RowTable
from millrace.common.errors import MillraceError
from millrace.common.loading.arguments import function
from millrace.common.loading.bad_samples import BadSample
from millrace.common.loading.decode import LOUDEST, SAMPLING_RATE
from millrace.common.loading.plan import BatchRequest, Plan
from millrace.common.loading.slots import REMEDY, BatchSlots, shortage

log = logging.getLogger("millrace")
_LOGGED = 20  # bad samples that one worker logs; all are counted


class BucketedDataset(Dataset):
    """Gives the padded batches of one rank by step; what BatchLoader's workers run.

        table = RowTable.open("results/asr/buckets")
        plan = plan_epoch(table.durations(), BatchBudget(240.0), seed=42, epoch=0, world_size=1)
        batch = BucketedDataset(table, plan)[0]
        print(batch["audio"].shape, batch["lengths"], batch["transcripts"])

    The plan stays with the trainer: a worker is sent the rows of one batch at a time, so its memory
    does not depend on the size of the epoch, and `plan` may be set anew for the next epoch while
    workers live on. What cannot be read or decoded is left out and listed in `Batch.bad`; a tar
    that changed raises MillraceError.

    Hooks, run in the workers: `decode` makes float32 (samples,) of a member's bytes, DecodeError
    leaves the sample out; `transform` returns the batch, changed in place, or what the trainer is
    to get instead.
    """

    def __init__(
        self,
        table: RowTable,
        plan: Plan | None = None,
        rank: int = 0,
        *,
        max_open_tars: int = 64,
        decode: Callable[[bytes], np.ndarray] | None = None,
        transform: Callable[[Batch], Any] | None = None,
    ) -> None:
        self.table = table
        self.plan = plan
        self.rank = rank
        self.decode = function("decode", decode)
        self.transform = function("transform", transform)
        self.reader = IndexedTarReader(max_open_tars, table.tars)
        self._logged: set[int] = set()

    def __len__(self) -> int:
        return len(self.plan or ())

    @property
    def rows(self) -> int:
        return len(self.table)

    def check(self, batch: Batch) -> None:
        """Raise MillraceError if sound is not float32 of about -1 to 1; an own `decode` may scale
        it."""
        audio = batch.audio
        low = 0.0
        high = 0.0
        if self.decode is None and audio.numel():
            low, high = (float(value) for value in audio.aminmax())
        if audio.dtype != torch.float32 or not max(-low, high) <= LOUDEST:
            problem = f"sound is {audio.dtype} from {low:g} to {high:g}, not float32 from -1 to 1"
            raise MillraceError(
                problem, f"step {batch.step}", "Divide integers of 16 bits by 32768, once"
            )

    def place(self, row: int, message: str) -> str:
        """Where a row stands: file and line of its manifest, or bucket and row."""
        return self.table.place(row, message)

    def new_slots(self, workers: int, per_worker: int) -> BatchSlots | None:
        """Slots for the largest of some batches of the plan with a margin: all are cut to the same
        budget."""
        seconds = 1.0
        if self.plan is not None and len(self.plan):
            spaced = np.linspace(0, len(self.plan) - 1, 200)
            for step in np.unique(spaced.astype(int)).tolist():
                rows = self.table.rows(self.plan.batch(step, self.rank))
                longest = max((row.duration_s for row in rows), default=0.0)
                seconds = max(seconds, len(rows) * longest)
        samples = int(1.25 * seconds * SAMPLING_RATE)
        problem = shortage(workers * per_worker * samples * 4)
        if problem:
            log.warning("%s. %s", problem, REMEDY)
            return None
        return BatchSlots(workers, per_worker, samples)

    def __getitem__(self, step: int) -> Any:
        if self.plan is None or not 0 <= step < len(self):
            raise IndexError(step)
        rows = self.plan.batch(step, self.rank)
        filler = self.plan.is_filler(step, self.rank)
        epoch = getattr(self.plan, "epoch", 0)
        batch = self.load(BatchRequest(step, rows, filler, epoch=epoch))
        return self.transform(batch) if self.transform else batch

    def load(self, request: BatchRequest, slots: BatchSlots | None = None) -> Batch:
        """Read, decode and pad the rows of one step, in a worker into one of `slots` or shared
        memory."""
        worker = getattr(get_worker_info(), "id", None)
        if worker:  # one line for all workers: the first one's
            self.reader.copies.is_told = True
        rows = self.table.rows(request.rows)
        places = [(row.tar, row.offset, row.size) for row in rows]
        raws = list(self.reader.read_many(places))
        if request.following is not None:
            # Storage works on the next batch while this one is decoded.
            following = self.table.rows(request.following)
            self.reader.will_need([(row.tar, row.offset, row.size) for row in following])
        batch = collate(request.step, rows, raws, slots, worker, self.decode)
        batch.filler = request.filler
        batch.epoch = request.epoch
        for bad in batch.bad:
            self._log(bad)
        return batch

    def _log(self, bad: BadSample) -> None:
        if bad.row in self._logged or len(self._logged) > _LOGGED:
            return
        self._logged.add(bad.row)
        if len(self._logged) > _LOGGED:
            log.warning(
                "more samples cannot be used; this worker logs no further ones, but all are counted"
            )
            return
        log.warning(
            "sample left out (%s): %s: %s",
            bad.reason,
            self.place(bad.row, bad.message),
            bad.message,
        )

    def __getstate__(self) -> dict:
        return {**self.__dict__, "plan": None, "_logged": set()}
