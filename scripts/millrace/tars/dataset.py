"""Batches of samples out of any tars, read where this runs: what becomes of a sample that cannot be
read, or on which the user's `decode` fails."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch.utils.data import Dataset

from millrace.asr.loading.reader import ReadError
from millrace.common.loading.bad_samples import BadSample, SampleError
from millrace.common.loading.plan import BatchRequest, Plan
from millrace.common.loading.slots import BatchSlots
from millrace.common.training import seeding
from millrace.tars.samples import TarSamples

log = logging.getLogger("millrace")

Decode = (
    Mapping[str, Callable[[bytes], Any]] | Callable[[dict[str, bytes], np.random.Generator], Any]
)
"""Functions of a field's bytes by field, or one of the whole sample and a generator of its own."""


@dataclass
class TarBatch:
    """The samples of one step on one rank.

        from millrace import open_tars

        for batch in open_tars("train-*.tar", batch_size=8):
            for key, sample in zip(batch.ids, batch.samples, strict=True):
                print(batch.step, key, len(sample["jpg"]))

    `ids` are keys, or tars and keys; samples are dicts of bytes by field, or what `decode` made of
    them. `planned` is their number and that of `bad`, which could not be read or decoded. The loss
    of a `filler`, a repeated batch, must count nothing.
    """

    step: int
    ids: list[str]
    samples: list[Any]
    planned: int
    epoch: int = 0
    filler: bool = False
    bad: tuple[BadSample, ...] = ()

    def __len__(self) -> int:
        return len(self.ids)


class TarDataset(Dataset):
    """Gives the batches of one rank by step; what BatchLoader's workers run."""

    def __init__(
        self, samples: TarSamples, decode: Decode | None = None, seed: int = 0, rank: int = 0
    ) -> None:
        self.samples = samples
        self.decode = decode
        self.seed = seed
        self.rank = rank
        self.plan: Plan | None = None
        self.transform: Callable[[Any], Any] | None = None

    def __len__(self) -> int:
        return len(self.plan or ())

    @property
    def rows(self) -> int:
        return len(self.samples)

    def check(self, batch: TarBatch) -> None:
        """Nothing is known of what `decode` returns."""

    def place(self, row: int, message: str) -> str:
        """Key, tar and byte of a sample."""
        return self.samples.place(row)

    def new_slots(self, workers: int, per_worker: int) -> BatchSlots | None:
        """No shared memory: what `decode` returns may be anything."""
        return None

    def load(self, request: BatchRequest, slots: BatchSlots | None = None) -> TarBatch:
        """Read and decode the samples of one step."""
        ids = self.samples.ids_of(request.rows)
        raws = self._read(request)
        batch = TarBatch(request.step, ids, raws, len(ids), request.epoch, request.filler)
        if self.decode is None and ReadError not in map(type, raws):
            return batch

        batch.ids = []
        batch.samples = []
        bad = []
        for row, key, raw in zip(request.rows.tolist(), ids, raws, strict=True):
            try:
                sample = self._decoded(raw, request.epoch, key)
            except SampleError as error:
                bad.append(BadSample(row, row, error.reason, str(error)))
                log.warning("sample left out (%s): %s: %s", error.reason, key, error)
                continue
            batch.ids.append(key)
            batch.samples.append(sample)
        batch.bad = tuple(bad)
        return batch

    def _read(self, request: BatchRequest) -> list[dict[str, bytes] | ReadError]:
        raws = self.samples.read(request.rows)
        if request.following is not None:
            # Storage works on the next batch while this one is decoded.
            self.samples.will_need(request.following)
        return raws

    def _decoded(self, raw: dict[str, bytes] | ReadError, epoch: int, key: str) -> Any:
        """What `decode` makes of a sample. Raises SampleError."""
        if isinstance(raw, ReadError):
            raise raw
        if self.decode is None:
            return raw
        try:
            if callable(self.decode):
                return self.decode(raw, seeding.generator(self.seed, epoch, key))
            decoded: dict[str, Any] = dict(raw)
            for field, function in self.decode.items():
                if field in raw:
                    decoded[field] = function(raw[field])
            return decoded
        except SampleError:
            raise
        except Exception as error:  # of the user's function, whatever it is
            raise SampleError("decode", f"{type(error).__name__}: {error}") from error

    def __getstate__(self) -> dict:
        # Workers are sent the rows of one batch at a time.
        return {**self.__dict__, "plan": None}
