"""A loader that costs nothing: batches made once, kept in memory, given again and again. The time that is
left is the model's."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import torch

from millrace.common.errors import MillraceError


class IdealLoader:
    """Yields as many batches as `inner` has, all of them copies of the first `cache_batches`, in their order.

    The cache is filled before the first batch is given (once; later passes use it too), with memory of its
    own, so that no worker waits for a slot to become free. Batches are millrace.asr.loading.collate.Batch, or
    hold their tensors in a dict `tensors`. Samples are trained on several times: a run with this loader
    measures time, and its model is of no use.
    """

    def __init__(self, inner: Iterable[Any], cache_batches: int = 64) -> None:
        self.inner, self.cache_batches = inner, cache_batches
        self._cache: list[Any] = []

    def __len__(self) -> int:
        return len(self.inner)

    def __iter__(self) -> Iterator[Any]:
        if not self._cache:
            batches = iter(self.inner)
            self._cache = [_owned(batch) for batch in islice(batches, self.cache_batches)]
            if hasattr(batches, "close"):
                batches.close()
        if len(self) and not self._cache:
            raise MillraceError("the loader has no batch to keep", where="ideal loader")
        first = getattr(self.inner, "start_step", 0)
        for place in range(len(self)):
            batch = copy.copy(self._cache[place % len(self._cache)])  # `to` changes the batch in place
            batch.step = first + place
            yield batch


def _owned(batch: Any) -> Any:
    """The batch in private memory: page-locked if it was."""
    batch = copy.copy(batch)
    if hasattr(batch, "tensors"):
        batch.tensors = {name: _clone(value) for name, value in batch.tensors.items()}
    for name in ("audio", "lengths"):
        if isinstance(value := getattr(batch, name, None), torch.Tensor):
            setattr(batch, name, _clone(value))
    return batch


def _clone(value: torch.Tensor) -> torch.Tensor:
    pinned = value.device.type == "cpu" and torch.cuda.is_available() and value.is_pinned()
    return value.clone().pin_memory() if pinned else value.clone()
