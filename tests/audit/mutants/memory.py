"""DP9 and DP15: memory of workers, shared memory and open files of batches in flight."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
import torch

from tests.audit.mutants import bug, passing, twin
from tests.audit.mutants.rows import Rows, load, numbers, row, train

MANY = 4_000_000  # rows of a megabyte each: more than any machine's memory


def decode(index: int) -> torch.Tensor:
    """A megabyte for each row."""
    return torch.full((1 << 18,), float(index))


@lru_cache(None)
def cached(index: int) -> torch.Tensor:
    return decode(index)


@lru_cache(4)
def cached_few(index: int) -> torch.Tensor:
    return decode(index)


def decoded(index: int, decode: Callable) -> dict:
    return {"x": decode(index)[:4].clone(), "id": index}


class History:
    """Appends what it has made to a list, for statistics at the end."""

    def __init__(self) -> None:
        self.made: list = []

    def __call__(self, index: int) -> dict:
        self.made.append(decode(index))
        return row(index)


class Cache:
    """Keeps what it has made, as many rows as `most` says."""

    def __init__(self, most: int) -> None:
        self.most, self.made = most, {}

    def __call__(self, index: int) -> dict:
        if len(self.made) >= self.most:
            self.made.pop(next(iter(self.made)))
        self.made[index] = torch.full((20_000,), float(index))
        return row(index)


class Speaking:
    """Speaks of the length of its cache, and does nothing about it."""

    def __init__(self) -> None:
        self.made: dict = {}

    def __call__(self, index: int) -> dict:
        if len(self.made) > 400 and index % 1000 == 0:
            print("the cache is large")
        self.made[index] = torch.full((20_000,), float(index))
        return row(index)


@lru_cache(4)
def few(index: int) -> int:
    return index


class Beside(Speaking):
    """Has a bounded cache too."""

    def __call__(self, index: int) -> dict:
        return super().__call__(few(index))


class Held:
    """Rows of a table: an array that is mapped, a tensor in shared memory, a list of strings."""

    def __init__(self, table: object) -> None:
        self.table = table

    def __call__(self, index: int) -> dict:
        return {"x": numbers(index), "entry": self.table[index], "id": index}


def big(index: int, size: int) -> dict:
    return {"x": numbers(index).repeat(size), "id": index}


def pieces(samples: list) -> list:
    """A batch of many small tensors."""
    return [sample["x"].clone() for sample in samples]


def mapped(folder: str) -> np.ndarray:
    return np.load(Path(folder) / "numbers.npy", mmap_mode="r")


SHM, FILES = {"within": "shm"}, {"within": "files"}
CASES = {
    "DP9": [
        bug(
            "a cache without bound",
            lambda: load(Rows(MANY, partial(decoded, decode=cached))),
            says="bytes per new sample",
        ),
        bug(
            "a cache that is spoken of",
            lambda: load(Rows(10**8, Speaking())),
            says="for 100000000 samples",
        ),
        bug(
            "a cache beside a bounded one",
            lambda: load(Rows(10**8, Beside())),
            says="for 100000000 samples",
        ),
        passing("a cache of as many as its source says", lambda: load(Rows(10**8, Cache(400)))),
        bug("a list of all that was made", lambda: load(Rows(MANY, History()), num_workers=1)),
        twin("a cache of four rows", lambda: load(Rows(MANY, partial(decoded, decode=cached_few)))),
        twin("a cache that fits", lambda: load(Rows(64, partial(decoded, decode=cached)))),
        twin("a mapped file", lambda folder: load(Rows(64, Held(mapped(folder))))),
        twin(
            "a shared tensor", lambda: load(Rows(64, Held(torch.rand(64, 1 << 14).share_memory_())))
        ),
        twin(
            "a list of strings", lambda: train(Rows(100_000, Held(list(map(str, range(100_000))))))
        ),
    ],
    "DP15": [
        bug("batches of 32 MB", lambda: load(Rows(32, partial(big, size=1 << 19))), **SHM),
        bug(
            "sixteen batches ahead",
            lambda: load(Rows(512, partial(big, size=1 << 16)), prefetch_factor=16),
            **SHM,
        ),
        bug(
            "a thousand tensors ahead",
            lambda: load(Rows(8192), batch_size=256, collate_fn=pieces),
            **FILES,
        ),
        twin(
            "big batches, no workers",
            lambda: load(Rows(32, partial(big, size=1 << 19)), num_workers=0),
            **SHM,
        ),
        twin("many small batches ahead", lambda: load(Rows(512), prefetch_factor=64), **SHM),
        twin("few tensors ahead", lambda: load(Rows(512), prefetch_factor=4), **FILES),
    ],
}
