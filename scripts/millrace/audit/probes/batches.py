"""Batches of a loader, made in this process out of samples that are seen one by one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from torch.utils.data import DataLoader

from millrace.audit.runner.listener import Listener, is_stream
from millrace.audit.runner.target import Rank

MOST_INDICES = 10**6


def order(loader: Any) -> Iterable[Any]:
    """What a data set is asked for, in turn: a list of indices for each batch, or a single one
    where the loader makes no batches."""
    if loader.batch_sampler is None:
        return loader.sampler
    return loader.batch_sampler


def is_name(asked: Any) -> bool:
    """Whether a data set is asked by a name, as batch samplers may hand out, and not for a row."""
    return isinstance(asked, (str, tuple))


def samples_of(loader: Any, drawn: Any) -> list[Any]:
    """The samples of a data set with indices, as torch reads them."""
    data = loader.dataset
    if loader.batch_sampler is None:
        return [data[drawn]]
    if hasattr(data, "__getitems__"):
        return data.__getitems__(drawn)
    return [data[index] for index in drawn]


def collated(loader: Any, samples: list[Any]) -> Any:
    return loader.collate_fn(samples[0] if loader.batch_sampler is None else samples)


def index_batches(loader: Any, limit: int | None = None) -> list | None:
    """Return the indices that the loader's own sampler draws, a list for each batch; None for a
    stream, and what is no DataLoader.

    Without a limit also those that drop_last would leave out.
    """
    if not isinstance(loader, DataLoader) or is_stream(loader):
        return None
    if limit is not None or not loader.batch_size:
        return list(islice(order(loader), limit))
    size = loader.batch_size
    drawn = list(islice(loader.sampler, MOST_INDICES))
    starts = range(0, len(drawn), size)
    return [drawn[start : start + size] for start in starts]


def draw(loader: Any, rank: Rank, limit: int | None) -> Iterator[tuple[list, Any]]:
    """Yield (samples, batch) as the loader makes them; no samples if they are unknown."""
    batches = index_batches(loader, limit)
    if batches is None:
        for batch in islice(Listener(loader, rank, 0).epoch(), limit):
            yield [], batch
        return
    for indices in batches:
        samples = samples_of(loader, indices)
        yield samples, collated(loader, samples)
