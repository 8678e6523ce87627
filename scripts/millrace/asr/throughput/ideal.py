"""A loader that costs nothing: a run with it has the time that is left, the model's."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from collections.abc import Iterator
from itertools import islice

import torch

from millrace.asr.loading.batch_loader import BatchLoader
from millrace.asr.loading.collate import Batch


class IdealLoader:
    """Yields as many batches as `inner` has, all of them copies of the first `cache_batches`, in their order.

    They are cached before the first is given, once for all passes, in memory of their own, so that no worker
    waits for a slot to become free. Samples are trained on several times: the model is of no use.
    """

    def __init__(self, inner: BatchLoader, cache_batches: int = 64) -> None:
        self.inner, self.cache_batches = inner, cache_batches
        self._cache: list[Batch] = []

    def __len__(self) -> int:
        return len(self.inner)

    def __iter__(self) -> Iterator[Batch]:
        if not self._cache:
            with contextlib.closing(iter(self.inner)) as batches:
                self._cache = [_owned(batch) for batch in islice(batches, self.cache_batches)]
        for place in range(len(self)):
            batch = copy.copy(self._cache[place % len(self._cache)])  # `to` changes the batch in place
            batch.step = self.inner.start_step + place
            yield batch


def _owned(batch: Batch) -> Batch:
    """The batch in private memory: page-locked if it was."""
    tensors = {"audio": batch.audio.clone(), "lengths": batch.lengths.clone()}
    for name, copied in tensors.items():
        if torch.cuda.is_available() and getattr(batch, name).is_pinned():
            tensors[name] = copied.pin_memory()
    return dataclasses.replace(batch, **tensors)
