"""DP2, DP3 and edges: who reads which rows, and how many batches that makes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch.utils.data import WeightedRandomSampler

from tests.audit.mutants import PICKLED, bug, twin
from tests.audit.mutants.rows import Rows, Stream, load, rank, row, spread, train, world


class Uneven(Stream):
    """Three files of eight rows: rank 0 has two of them."""

    def __init__(self, steps: int | None = None) -> None:
        super().__init__()
        self.steps = steps

    def __iter__(self) -> Iterator[dict]:
        mine = [index for index in range(self.rows) if index // 8 % self.world == self.rank]
        return map(row, mine[: self.steps])


class Asking(Stream):
    """Asks for its rank in the worker: only a forked one knows it."""

    def share(self) -> slice:
        self.rank, self.world = rank(), world()
        return super().share()


class Sized(Stream):
    def __len__(self) -> int:
        return self.rows


def alike(index: int) -> dict:
    return {"x": torch.full((4,), index % 2)}


def halved(index: int) -> dict:
    """Every row twice, on purpose."""
    return row(index // 4 * 2 + index % 2)


evenly, repeats = partial(spread, Rows(32)), partial(spread, Rows(23))
exact, dropping = partial(load, Rows(24), drop_last=True), partial(load, Rows(23), drop_last=True)
WEIGHTS = [1.0] * 12 + [9.0] * 12
RANKS = "--ranks 2"
CASES = [
    bug("DP2", "every worker reads all", lambda: load(Stream(shard="none"))),
    bug("DP2", "every rank reads all", lambda: load(Stream(shard="worker")), RANKS),
    bug("DP2", "workers of a rank read the same", lambda: load(Stream(shard="rank")), RANKS),
    bug("DP2", "every worker of every rank reads all", lambda: load(Stream(shard="none")), RANKS),
    bug("DP2", "a rank asked for in the worker", lambda: load(Asking()), RANKS, methods=PICKLED),
    twin("DP2", "shared out over ranks and workers", lambda: load(Stream(32)), RANKS),
    twin("DP2", "rows of equal contents", lambda: load(Stream(32, make=alike)), RANKS),
    twin(
        "DP2",
        "drawn with replacement",
        lambda: load(Rows(), sampler=WeightedRandomSampler(WEIGHTS, 24)),
    ),
    twin("DP2", "one worker needs no sharding", lambda: load(Stream(shard="none"), num_workers=1)),
    twin("DP2", "every row twice on purpose", lambda: load(Stream(32, make=halved)), RANKS),
    bug("DP3", "one rank has more files", lambda: load(Uneven(), num_workers=1), RANKS),
    bug(
        "DP3",
        "drop last is no remedy",
        lambda: load(Uneven(), num_workers=1, drop_last=True),
        RANKS,
    ),
    bug("DP3", "one row more makes a step more", lambda: load(Stream(33), num_workers=0), RANKS),
    bug("DP3", "evaluation repeats a row", evenly, RANKS, val=repeats),
    twin("DP3", "evaluation divides evenly", evenly, RANKS, val=evenly),
    twin(
        "DP3", "all ranks stop at the shortest", lambda: load(Uneven(steps=8), num_workers=1), RANKS
    ),
    twin("DP3", "a row more in the last batch", lambda: load(Stream(31), num_workers=0), RANKS),
    twin("DP3", "padded by its sampler", lambda: spread(Rows(33)), RANKS),
    bug("edges", "fewer rows than a batch", lambda: load(Rows(6), batch_size=8, drop_last=True)),
    bug("edges", "evaluation drops rows", lambda: train(Rows()), val=dropping),
    bug("edges", "workers drop their shares", lambda: load(Stream(6), drop_last=True)),
    twin("edges", "evaluation drops nothing", lambda: train(Rows()), val=exact),
    twin("edges", "training drops a remainder", lambda: train(Rows(26), drop_last=True)),
    twin("edges", "a stream of exact length", lambda: load(Sized())),
]
