"""DP2, DP3 and edges: who reads which rows, and how many batches that makes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    Subset,
    WeightedRandomSampler,
    default_collate,
)
from torch.utils.data.distributed import DistributedSampler

from tests.audit.mutants import PICKLED, RANKS, bug, passing, twin, undecided
from tests.audit.mutants.rows import Rows, Sized, Stream, load, rank, row, spread, train, world


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


class Narrowing(Stream):
    """Keeps its share, of which persistent workers take a share again."""

    def __iter__(self) -> Iterator[dict]:
        self.kept = vars(self).get("kept", range(self.rows))[self.share()]
        return map(self.make, self.kept)


def alike(index: int) -> dict:
    return {"x": torch.full((4,), index % 2)}


def halved(index: int) -> dict:
    """Every row twice, on purpose."""
    return row(index // 4 * 2 + index % 2)


def own_subset() -> DataLoader:
    """What a split gives that each rank draws for itself: 24 of 31 rows, others on each."""
    first = 7 * rank()
    return spread(Subset(Rows(31), range(first, first + 24)))


def drawn_again(seed: int) -> DataLoader:
    """Draws with replacement, from a generator of this seed."""
    generator = torch.Generator().manual_seed(seed)
    return load(Rows(), sampler=WeightedRandomSampler(WEIGHTS, 24, generator=generator))


class Endless(Stream):
    def __iter__(self) -> Iterator[dict]:
        yield from super().__iter__()
        while True:
            yield from map(row, torch.randint(33, (8,)).tolist())


class Spent:
    """Gives one iterator in all epochs."""

    def __init__(self, loader: DataLoader) -> None:
        self.steps = len(loader)
        self.batches = iter(loader)

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator[dict]:
        return self.batches


class Many(Rows):
    """Asked for whole batches."""

    def __getitem__(self, indices: list[int]) -> dict:
        return default_collate([super(Many, self).__getitem__(index) for index in indices])


def by_batch(**sampler: int) -> DataLoader:
    drawn = BatchSampler(DistributedSampler(Many(32), **sampler), 4, False)
    return DataLoader(Many(32), batch_size=None, sampler=drawn, num_workers=2)


def shared_twice() -> DataLoader:
    mine = Subset(Rows(32), range(rank(), 32, world()))
    return load(mine, sampler=DistributedSampler(mine))


class Told(DataLoader):
    """Twin of litdata 0.2.76: its batches tell more than samples, and the loop is given the samples
    alone."""

    def __iter__(self) -> Iterator[dict]:
        return (batch["samples"] for batch in super().__iter__())


def with_count(samples: list) -> dict:
    return {"samples": default_collate(samples), "count": torch.tensor(len(samples))}


def in_one_list(samples: list) -> dict:
    """Nobody can tell which sample is where."""
    flat = [torch.tensor([float(sample["id"]), 0.5]) for sample in samples]
    return {"samples": {"all": torch.cat(flat)}}


def told(collate: Callable = with_count, shard: str = "both") -> DataLoader:
    return Told(Stream(33, shard), batch_size=4, num_workers=2, collate_fn=collate)


class Regrouped:
    """A loader's batches, several in a list or each in parts, as for gradients that add up."""

    def __init__(self, joins: bool) -> None:
        self.loader, self.joins = train(Rows()), joins

    def __iter__(self) -> Iterator:
        batches = list(self.loader)
        if self.joins:
            return iter([batches[:3], batches[3:]])
        halves = (slice(2), slice(2, None))
        return ({name: batch[name][half] for name in batch} for batch in batches for half in halves)


class Dealt:
    """Twin of accelerate 1.15.0: rank 0 reads its own share of a stream, and deals its batches out
    to all."""

    def __iter__(self) -> Iterator[dict]:
        share = torch.arange(0, 96, world())
        for batch in share.split(4 * world()):
            yield {"id": batch[4 * rank() :][:4]}


class Classes(IterableDataset):
    """Ten classes and fresh noise; all workers read all of it."""

    def __iter__(self) -> Iterator[dict]:
        return ({"label": row % 10, "x": row + torch.rand(2)} for row in range(300))


evenly, repeats = partial(spread, Rows(32)), partial(spread, Rows(23))
exact, dropping = partial(load, Rows(24), drop_last=True), partial(load, Rows(23), drop_last=True)
WEIGHTS = [1.0] * 12 + [9.0] * 12
OF_WORKERS, OF_RANKS = "of 2 workers", "of 2 ranks"
CASES = {
    "DP2": [
        bug("every worker reads all", lambda: load(Stream(shard="none")), says=OF_WORKERS),
        bug("every rank reads all", lambda: load(Stream(shard="worker")), RANKS, says=OF_RANKS),
        bug("workers of a rank read the same", lambda: load(Stream(shard="rank")), RANKS),
        bug(
            "every worker of every rank reads all",
            lambda: load(Stream(shard="none")),
            RANKS,
            says=f"{OF_WORKERS} | {OF_RANKS}",
        ),
        bug(
            "a rank asked for in the worker",
            lambda: load(Asking(), num_workers=1),
            f"{RANKS} --epochs 1",
            methods=PICKLED,
        ),
        bug(
            "ranks share out what they have shared out",
            shared_twice,
            RANKS,
            says="16 of 32 samples come nowhere",
        ),
        bug(
            "whole batches of a sampler for one rank",
            lambda: by_batch(num_replicas=1, rank=0),
            RANKS,
            says=OF_RANKS,
        ),
        bug("dealt out by rank 0", Dealt, RANKS, says="48 of 96 samples come nowhere"),
        bug(
            "every worker reads all classes",
            lambda: load(Classes(), batch_size=10),
            says="300 samples come on several of 2 workers",
        ),
        bug("each rank has a subset of its own", own_subset, RANKS, says=OF_RANKS),
        passing(
            "shared out over ranks and workers", lambda: load(Stream(32)), RANKS, says="share out"
        ),
        bug(
            "a share of a share",
            lambda: load(Narrowing(48), persistent_workers=True),
            says="24 of 48 samples come nowhere in epoch 1",
        ),
        passing("a share of new workers", lambda: load(Narrowing(48))),
        undecided("batches joined by a wrapper", lambda: Regrouped(True)),
        passing("batches cut by a wrapper", lambda: Regrouped(False)),
        passing("no rows", lambda: load(Subset(Rows(), [])), RANKS),
        passing("whole batches of each rank", by_batch, RANKS, says="share out"),
        passing("batches that tell more", told, says="share out"),
        undecided(
            "batches that tell less",
            lambda: told(in_one_list, "worker"),
            says="none that the dataset gives by itself",
        ),
        undecided("no end", lambda: load(Endless(33)), "--epochs 1"),
        twin("rows of equal contents", lambda: load(Stream(32, make=alike)), RANKS),
        twin(
            "drawn with replacement",
            lambda: load(Rows(), sampler=WeightedRandomSampler(WEIGHTS, 24)),
        ),
        passing("drawn with replacement, by rank", lambda: drawn_again(rank()), RANKS),
        undecided(
            "drawn with replacement, on all ranks alike",
            lambda: drawn_again(0),
            RANKS,
            says="several ranks draw the same samples",
        ),
        twin("one worker needs no sharding", lambda: load(Stream(shard="none"), num_workers=1)),
        twin("every row twice on purpose", lambda: load(Stream(32, make=halved)), RANKS),
    ],
    "end": [
        twin("no end", lambda: load(Endless(33)), "--epochs 1", says="endless"),
    ],
    "DP3": [
        bug("one rank has more files", lambda: load(Uneven(), num_workers=1), RANKS),
        bug("drop last is no remedy", lambda: load(Uneven(), num_workers=1, drop_last=True), RANKS),
        bug(
            "one row more makes a step more",
            lambda: load(Stream(33), num_workers=0),
            RANKS,
            says="[5, 4]",
        ),
        bug("batches that tell more, one row more", told, RANKS, says="[5, 4]"),
        bug(
            "evaluation repeats a row",
            evenly,
            RANKS,
            val=repeats,
            says="DistributedSampler repeats 1 sample to even out 2 ranks",
        ),
        twin("evaluation divides evenly", evenly, RANKS, val=evenly),
        twin("all ranks stop at the shortest", lambda: load(Uneven(steps=8), num_workers=1), RANKS),
        twin("a row more in the last batch", lambda: load(Stream(31), num_workers=0), RANKS),
        twin("padded by its sampler", lambda: spread(Rows(33)), RANKS),
    ],
    "edges": [
        bug("fewer rows than a batch", lambda: load(Rows(6), batch_size=8, drop_last=True)),
        bug("evaluation drops rows", lambda: train(Rows()), val=dropping),
        bug(
            "evaluation drops rows by its batch sampler",
            lambda: train(Rows()),
            val=lambda: DataLoader(Rows(23), batch_sampler=BatchSampler(range(23), 4, True)),
            says="drop_last=True on the val loader loses 3 of 23 samples",
        ),
        bug("workers drop their shares", lambda: load(Stream(6), drop_last=True)),
        bug("a spent iterator", lambda: Spent(load(Rows())), says="none in epoch 1"),
        twin("an iterator for one epoch", lambda: iter([*load(Rows())])),
        twin("evaluation drops nothing", lambda: train(Rows()), val=exact),
        twin("training drops a remainder", lambda: train(Rows(26), drop_last=True)),
        twin("a stream of exact length", lambda: load(Sized(24))),
    ],
}
