"""Loaders whose randomness, sharding, order or state is known."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    Sampler,
    Subset,
    default_collate,
    get_worker_info,
)
from torch.utils.data.distributed import DistributedSampler


class Rows(Dataset):
    """`noise`: what draws a number for each sample. `stuck`: the index that never comes."""

    def __init__(self, noise: random.Random | str = "", stuck: int = -1) -> None:
        self.noise, self.stuck, self.epoch = noise, stuck, 0

    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> dict:
        time.sleep(1e6 if index == self.stuck else 0)
        drawn = {"torch": lambda: torch.rand(()).item(), "": float}.get(
            self.noise
        ) or self.noise.random
        return {"id": index, "x": torch.tensor([index + drawn()])}


class ByEpoch(Rows):
    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([random.Random(1000 * self.epoch + index).random()])


class Stream(IterableDataset):
    """`over`: who shares it out. `rng`: shuffles it."""

    def __init__(self, over: str, rng: random.Random | None = None, endless: bool = False) -> None:
        self.over, self.rng, self.endless = over, rng, endless

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info and "workers" in self.over else (0, 1)
        rank, world = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE"))
        rank, world = (rank, world) if "ranks" in self.over else (0, 1)
        mine = list(range(rank * workers + worker, 33, world * workers))
        if self.rng is not None:
            self.rng.shuffle(mine)
        yield from mine
        while self.endless:
            yield from torch.randint(33, (8,)).tolist()


class Constant(Sampler):
    def __init__(self) -> None:
        self.drawn = self.start = 0

    def __len__(self) -> int:
        return 32

    def __iter__(self) -> Iterator[int]:
        order, start, self.start = list(range(32)), self.start, 0
        random.Random(5).shuffle(order)
        for self.drawn, index in enumerate(order[start:], start=start + 1):
            yield index
        self.drawn = 0


class Counting(Constant):
    """Its state is what was drawn, which workers hold ahead of the loop."""

    def state_dict(self) -> dict:
        return {"drawn": self.drawn}

    def load_state_dict(self, state: dict) -> None:
        self.start = state["drawn"]


def load(dataset: object, **settings: object) -> DataLoader:
    return DataLoader(dataset, **{"batch_size": 4, "num_workers": 2, **settings})


def noisy(noise: str = "torch", seeded: bool = False) -> DataLoader:
    if seeded:
        torch.manual_seed(1)
    dataset = Rows(random.Random(3) if noise == "own" else noise)
    return load(dataset, sampler=DistributedSampler(dataset, shuffle=False))


def nothing() -> DataLoader:
    return load(Subset(Rows(), []))


def constant_seed() -> DataLoader:
    return load(
        Rows("torch"), shuffle=True, worker_init_fn=lambda worker: torch.manual_seed(7 + worker)
    )


def stream(over: str = "", shuffled: bool = False, endless: bool = False) -> DataLoader:
    return load(Stream(over, random.Random(1) if shuffled else None, endless))


class Many(Rows):
    """Asked for whole batches."""

    def __getitem__(self, indices: list[int]) -> dict:
        return default_collate([super(Many, self).__getitem__(index) for index in indices])


def by_batch(alone: bool = False) -> DataLoader:
    sampler = DistributedSampler(Many(), **({"num_replicas": 1, "rank": 0} if alone else {}))
    return DataLoader(
        Many(), batch_size=None, sampler=BatchSampler(sampler, 4, False), num_workers=2
    )


def twice() -> DataLoader:
    mine = Subset(Rows(), range(int(os.environ["RANK"]), 32, int(os.environ["WORLD_SIZE"])))
    return load(mine, sampler=DistributedSampler(mine))


def distributed(rows: int = 32) -> DataLoader:
    dataset = Subset(Rows(), range(rows))
    return load(dataset, num_workers=0, sampler=DistributedSampler(dataset))


def odd() -> DataLoader:
    return distributed(31)


class Told(DataLoader):
    """Twin of litdata 0.2.76: its batches tell more than samples, and the loop is given the samples
    alone."""

    def __iter__(self) -> Iterator[dict]:
        return (batch["samples"] for batch in super().__iter__())


def samples_and_count(samples: list) -> dict:
    return {"samples": default_collate(samples), "count": torch.tensor(len(samples))}


def in_one_list(samples: list) -> dict:
    """Nobody can tell which sample is where."""
    return {
        "samples": {"all": torch.cat([torch.tensor([float(sample), 0.5]) for sample in samples])}
    }


def told(over: str = "workers", apart: bool = True) -> DataLoader:
    return Told(
        Stream(over),
        batch_size=4,
        num_workers=2,
        collate_fn=samples_and_count if apart else in_one_list,
    )


class Dealt:
    """Twin of accelerate 1.15.0: rank 0 reads its own share of a stream, and deals its batches out
    to all."""

    def __iter__(self) -> Iterator[dict]:
        rank, world = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE"))
        share = torch.arange(0, 96, world)
        for batch in share.split(4 * world):
            yield {"id": batch[4 * rank :][:4]}


class Classes(IterableDataset):
    """Ten classes and fresh noise; all workers read all of it."""

    def __iter__(self) -> Iterator[dict]:
        return ({"label": row % 10, "x": row + torch.rand(2)} for row in range(300))


def classes() -> DataLoader:
    return DataLoader(Classes(), batch_size=10, num_workers=2)


class Nodes:
    """Twin of torchdata 0.11.0's nodes: a random order is drawn anew after a restart, and skipped
    into."""

    def __init__(self) -> None:
        self.start = self.seen = 0

    def __iter__(self) -> Iterator[dict]:
        start, self.start = self.start, 0
        for self.seen, ids in enumerate(torch.randperm(32).split(4), start=1):
            if self.seen > start:
                yield {"id": ids}
        self.seen = 0

    def state_dict(self) -> dict:
        return {"seen": self.seen}

    def load_state_dict(self, state: dict) -> None:
        self.start = state["seen"]


class Refusing(Nodes):
    """Twin of a shuffled stream of datasets 5.2.0 in torchdata's loader with workers: it cannot go
    on."""

    def load_state_dict(self, state: dict) -> None:
        raise IndexError("list index out of range")


class Positioned(DistributedSampler):
    """Twin of torchdata 0.11.0's StatefulDistributedSampler: its state is the position, without the
    epoch; at the end of an epoch it stays there, unless it `forgets`."""

    def __init__(self, forgets: bool) -> None:
        super().__init__(Rows())
        self.forgets, self.given, self.start = forgets, 0, 0

    def __iter__(self) -> Iterator[int]:
        start, self.start = self.start, 0
        for self.given, index in enumerate(super().__iter__(), start=1):
            if self.given > start:
                yield index
        self.given = 0 if self.forgets else self.given

    def state_dict(self) -> dict:
        return {"given": self.given}

    def load_state_dict(self, state: dict) -> None:
        self.start = state["given"]


def positioned(forgets: bool = False) -> DataLoader:
    return load(Rows(), num_workers=0, sampler=Positioned(forgets))


class Ending(Positioned):
    """What comes after a restart has no tail."""

    def __iter__(self) -> Iterator[int]:
        last = 28 if self.start else 32
        return (index for at, index in enumerate(super().__iter__(), start=self.start) if at < last)


def without_tail() -> DataLoader:
    return load(Rows(), num_workers=0, sampler=Ending(forgets=True))


def trains(loader: DataLoader) -> None:
    for _ in range(2):
        list(loader)


class Leaving:
    def __del__(self) -> None:
        time.sleep(1e6)


def trains_for_ever(loader: DataLoader) -> None:
    Leaving()  # an error that comes meanwhile is ignored
    while True:
        list(loader)


def trains_by_epoch(loader: DataLoader) -> None:
    for epoch in range(2):
        loader.sampler.set_epoch(epoch)
        list(loader)


def sampled(state: bool = False, workers: int = 2) -> DataLoader:
    return load(Rows(), sampler=Counting() if state else Constant(), num_workers=workers)


def by_epoch(persistent: bool) -> DataLoader:
    return load(ByEpoch(), persistent_workers=persistent)


def stuck() -> DataLoader:
    return load(Rows(stuck=20))


def refused() -> DataLoader:
    return DataLoader(Rows(), sampler=Constant(), shuffle=True)
