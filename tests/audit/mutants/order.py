"""DP14 and resume: the order of the rows from epoch to epoch, and after a stop in mid-epoch."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial

import torch
from torch.utils.data import DataLoader, Sampler

from tests.audit.mutants import bug, twin
from tests.audit.mutants.rows import Rows, Stream, load, rank, spread, train, world


class Shuffled(Sampler):
    """A permutation by the epoch, shared out over ranks, in batches if `batch` is given."""

    def __init__(self, rows: int, batch: int = 0, deaf: bool = False) -> None:
        self.rows, self.batch, self.deaf, self.epoch = rows, batch, deaf, 0

    def __len__(self) -> int:
        return -(-self.rows // world() // max(self.batch, 1))

    def order(self) -> list[int]:
        order = list(range(self.rows))
        random.Random(self.epoch).shuffle(order)
        return order[rank() :: world()]

    def __iter__(self) -> Iterator:
        order, size = self.order(), self.batch
        return iter([order[at : at + size] for at in range(0, len(order), size)] if size else order)

    def set_epoch(self, epoch: int) -> None:
        self.epoch = 0 if self.deaf else epoch


class Untold(Shuffled):
    set_epoch = None


def trains(loader: DataLoader) -> None:
    """A training loop of two epochs that does not say which epoch it is."""
    for _ in range(2):
        for _ in loader:
            pass


def trains_by_epoch(loader: DataLoader) -> None:
    """The same, and it says so to whatever wants to know."""
    for epoch in range(2):
        for part in (loader.sampler, loader.batch_sampler, loader.dataset):
            if getattr(part, "set_epoch", None):
                part.set_epoch(epoch)
        for _ in loader:
            pass


distributed = partial(spread, Rows(32), shuffle=True)


class ShuffledStream(Stream):
    """Its workers shuffle by the epoch; `shared` tells persistent workers of it."""

    def __init__(self, shared: bool) -> None:
        super().__init__()
        self.epoch = torch.zeros((), dtype=torch.int64).share_memory_() if shared else 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = self.epoch.fill_(epoch) if isinstance(self.epoch, torch.Tensor) else epoch

    def __iter__(self) -> Iterator[dict]:
        order = list(range(self.rows))
        random.Random(1000 + int(self.epoch)).shuffle(order)
        return map(self.make, order[self.share()])


class Resumable(DataLoader):
    """Says in `state_dict` how many batches its user has seen; `replays` forgets that when it is
    restored."""

    replays = False

    def __iter__(self) -> Iterator[dict]:
        skip = self.__dict__.pop("start", 0)
        for step, batch in enumerate(super().__iter__(), start=1):
            self.__dict__["seen"] = step
            if step > skip:
                yield batch
        self.__dict__["seen"] = 0

    def state_dict(self) -> dict:
        return {"seen": self.__dict__.get("seen", 0), "epoch": self.sampler.epoch}

    def load_state_dict(self, state: dict) -> None:
        self.__dict__["start"] = 0 if self.replays else state["seen"]
        self.sampler.epoch = state["epoch"]


class Replays(Resumable):
    replays = True


class Reorders(Shuffled):
    """Draws a new order each time: the rest of an epoch is not the rest that was left."""

    def order(self) -> list[int]:
        return torch.randperm(self.rows).tolist()


class Counting(Shuffled):
    """Counts what was drawn from it: with workers that is more than what its user has seen."""

    def __init__(self, rows: int) -> None:
        super().__init__(rows)
        self.drawn = self.start = 0

    def __iter__(self) -> Iterator[int]:
        start, self.start = self.start, 0
        for drawn, index in enumerate(self.order()[start:], start=start + 1):
            self.drawn = drawn
            yield index
        self.drawn = 0

    def state_dict(self) -> dict:
        return {"drawn": self.drawn, "epoch": self.epoch}

    def load_state_dict(self, state: dict) -> None:
        self.start, self.epoch = state["drawn"], state["epoch"]


def resumable(kind: type, sampler: Sampler, workers: int = 2) -> DataLoader:
    return kind(Rows(48), batch_size=4, num_workers=workers, sampler=sampler)


CASES = [
    bug("DP14", "one order for all epochs", lambda: load(Rows(), sampler=Untold(24))),
    bug(
        "DP14",
        "a sampler that ignores its epoch",
        lambda: load(Rows(), sampler=Shuffled(24, deaf=True)),
    ),
    bug("DP14", "a loop without set_epoch", distributed, "--ranks 2 --loop @order:trains"),
    bug(
        "DP14",
        "an epoch workers miss",
        lambda: load(ShuffledStream(shared=False), persistent_workers=True),
    ),
    twin(
        "DP14",
        "an epoch in shared memory",
        lambda: load(ShuffledStream(True), persistent_workers=True),
    ),
    twin("DP14", "an epoch for new workers", lambda: load(ShuffledStream(shared=False))),
    twin("DP14", "rows as they stand", lambda: load(Rows())),
    twin(
        "DP14",
        "a seeded generator",
        lambda: train(Rows(), generator=torch.Generator().manual_seed(0)),
    ),
    twin("DP14", "a loop with set_epoch", distributed, "--ranks 2 --loop @order:trains_by_epoch"),
    bug("resume", "an epoch that starts again", lambda: resumable(Replays, Shuffled(48))),
    bug("resume", "rows drawn ahead are skipped", lambda: resumable(DataLoader, Counting(48))),
    bug("resume", "a rest in another order", lambda: resumable(Resumable, Reorders(48))),
    twin("resume", "batches counted as seen", lambda: resumable(Resumable, Shuffled(48))),
    twin("resume", "drawn without workers", lambda: resumable(DataLoader, Counting(48), workers=0)),
    twin("resume", "no state at all", lambda: train(Rows(48))),
]
