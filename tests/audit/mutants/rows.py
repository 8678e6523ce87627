"""What the loaders of all families are made of: rows of numbers that are known by their index."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info
from torch.utils.data.distributed import DistributedSampler

from tests.audit.plain import load


def numbers(index: int, size: int = 4) -> torch.Tensor:
    return torch.rand(size, generator=torch.Generator().manual_seed(index))


def row(index: int) -> dict:
    return {"x": numbers(index), "id": index}


def rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def world() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


class Rows(Dataset):
    """Rows by their index, as a function makes them."""

    def __init__(self, rows: int = 24, make: Callable = row) -> None:
        self.rows, self.make = rows, make

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, index: int) -> dict:
        if not 0 <= index < self.rows:
            raise IndexError(index)
        return self.make(index)


class Stream(IterableDataset):
    """Rows as a stream. `shard` names who shares it out: "both", "worker", "rank", "none"."""

    def __init__(self, rows: int = 24, shard: str = "both", make: Callable = row) -> None:
        self.rows, self.shard, self.make = rows, shard, make
        # Of the main process: a worker that is spawned knows of no group.
        self.rank, self.world = rank(), world()

    def share(self) -> slice:
        """The rows of this consumer."""
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        consumers = {
            "both": (self.rank * workers + worker, self.world * workers),
            "worker": (worker, workers),
            "rank": (self.rank, self.world),
            "none": (0, 1),
        }
        first, step = consumers[self.shard]
        return slice(first, None, step)

    def __iter__(self) -> Iterator[dict]:
        return map(self.make, range(self.rows)[self.share()])


class Sized(Stream):
    """A stream that says a length."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.length = length

    def __len__(self) -> int:
        return self.length


def draw(source: object) -> float:
    """One number from a library's global state, or from a generator object."""
    if isinstance(source, torch.Generator) or source == "torch":
        return torch.rand((), generator=None if source == "torch" else source).item()
    return {"numpy": np.random, "python": random}.get(source, source).random()


class Noisy(Rows):
    """Rows with an augmentation: every number is moved by one that is drawn."""

    def __init__(self, rng: object, rows: int = 24) -> None:
        super().__init__(rows)
        self.rng = rng

    def __getitem__(self, index: int) -> dict:
        sample = super().__getitem__(index)
        return {**sample, "x": sample["x"] + draw(self.rng)}


def spread(dataset: object, shuffle: bool = False, **settings: object) -> DataLoader:
    """A DataLoader whose rows are shared out over the ranks."""
    return load(dataset, sampler=DistributedSampler(dataset, shuffle=shuffle), **settings)


train = partial(load, shuffle=True)
