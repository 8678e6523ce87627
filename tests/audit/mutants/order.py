"""DP14 and resume: the order of the rows from epoch to epoch, and after a stop in mid-epoch."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial

import torch
from torch.distributed.algorithms import Join
from torch.utils.data import DataLoader, Sampler
from torch.utils.data.distributed import DistributedSampler

from tests.audit import plain
from tests.audit.mutants import RANKS, bug, passing, twin, undecided
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


class Kept(Sampler):
    """Goes on with one shuffled order in each epoch, as samplers of steps do: here none is left."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.order = iter(torch.randperm(rows).tolist())

    def __iter__(self) -> Iterator[int]:
        yield from self.order

    def __len__(self) -> int:
        return self.rows


class Untold(Shuffled):
    set_epoch = None


class Restless(Shuffled):
    """Batches by the epoch; the rows of each in any order."""

    def __iter__(self) -> Iterator:
        for batch in super().__iter__():
            random.shuffle(batch)
            yield batch


class Steps(Kept):
    """Batches of so many steps that all training is one pass; the epochs follow by themselves."""

    def __iter__(self) -> Iterator[list[int]]:
        for step in range(len(self)):
            order = torch.randperm(self.rows, generator=torch.Generator().manual_seed(step // 6))
            yield order[step % 6 * 4 :][:4].tolist()

    def __len__(self) -> int:
        return 12


def of_steps() -> DataLoader:
    return DataLoader(Rows(), batch_sampler=Steps(24))


def trains_once(loader: DataLoader) -> None:
    list(loader)


def trains(loader: DataLoader) -> None:
    """A training loop of two epochs that does not say which epoch it is."""
    for _ in range(2):
        list(loader)


def trains_by_epoch(loader: DataLoader) -> None:
    """The same, and it says so to whatever wants to know."""
    for epoch in range(2):
        held = getattr(loader.dataset, "order", None)
        for part in (loader.sampler, loader.batch_sampler, loader.dataset, held):
            if getattr(part, "set_epoch", None):
                part.set_epoch(epoch)
        list(loader)


def trains_by_attribute(loader: DataLoader) -> None:
    """The same, without a method."""
    for epoch in range(2):
        loader.sampler.epoch = loader.dataset.epoch = epoch
        list(loader)


def trains_on_the_first(loader: DataLoader) -> None:
    """Says that each epoch is the first one."""
    for _ in range(2):
        loader.sampler.set_epoch(0)
        list(loader)


class Leaving:
    def __del__(self) -> None:
        time.sleep(1e6)


def trains_for_ever(loader: DataLoader) -> None:
    with suppress(ValueError):  # of no models
        Join([])
    Leaving()  # an error that comes meanwhile is ignored
    while True:
        list(loader)


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


class UntoldStream(ShuffledStream):
    set_epoch = None


class SampledStream(Stream):
    """Reads by a sampler that it holds, as PyTorchVideo's data sets do."""

    def __init__(self) -> None:
        super().__init__()
        self.order = Shuffled(24)

    def __iter__(self) -> Iterator[dict]:
        return map(self.make, list(self.order)[self.share()])


class Drawing(Stream):
    """Rows in their order; beside each four of them others are drawn."""

    def __iter__(self) -> Iterator[dict]:
        for number, sample in enumerate(super().__iter__()):
            if number % 4 == 0:
                beside = torch.randperm(24)
            yield {**sample, "beside": beside[:4]}


class HeldStream(Stream):
    """Its workers shuffle by a generator of which each has a copy, in each epoch a new one."""

    def __init__(self) -> None:
        super().__init__()
        self.rng = random.Random(1)

    def __iter__(self) -> Iterator[dict]:
        order = list(range(self.rows))[self.share()]
        self.rng.shuffle(order)
        return map(self.make, order)


class NoisyByEpoch(Rows):
    """Rows with noise that is a function of the epoch."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([random.Random(1000 * self.epoch + index).random()])


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


class Holding(Rows):
    """As a TensorDict: its state is what it holds, and no position."""

    def state_dict(self) -> dict:
        return {"rows": len(self)}

    def load_state_dict(self, state: dict) -> None:
        """Restore nothing: the rows are there."""


class Reorders(Shuffled):
    """Draws a new order each time: the rest of an epoch is not the rest that was left."""

    def order(self) -> list[int]:
        return torch.randperm(self.rows).tolist()


class Position:
    """A state that is the position alone."""

    start = given = 0

    def state_dict(self) -> dict:
        return {"given": self.given}

    def load_state_dict(self, state: dict) -> None:
        self.start = state["given"]


class Nodes(Position):
    """Twin of torchdata 0.11.0's nodes: a random order is drawn anew after a restart, and skipped
    into."""

    def __iter__(self) -> Iterator[dict]:
        start, self.start = self.start, 0
        for self.given, ids in enumerate(torch.randperm(32).split(4), start=1):
            if self.given > start:
                yield {"id": ids}
        self.given = 0


class Counting(Position, Shuffled):
    """Counts what was drawn from it: with workers that is more than what its user has seen."""

    def __iter__(self) -> Iterator[int]:
        start, self.start = self.start, 0
        for given, index in enumerate(self.order()[start:], start=start + 1):
            self.given = given
            yield index
        self.given = 0

    def state_dict(self) -> dict:
        return super().state_dict() | {"epoch": self.epoch}

    def load_state_dict(self, state: dict) -> None:
        super().load_state_dict(state)
        self.epoch = state["epoch"]


class Refusing(Nodes):
    """Twin of a shuffled stream of datasets 5.2.0 in torchdata's loader with workers: it cannot go
    on."""

    def load_state_dict(self, state: dict) -> None:
        raise IndexError("list index out of range")


class Positioned(Position, DistributedSampler):
    """Twin of torchdata 0.11.0's StatefulDistributedSampler: its state is the position, without the
    epoch; at the end of an epoch it stays there, unless it `forgets`."""

    def __init__(self, forgets: bool = False, last: int = 32) -> None:
        super().__init__(Rows(32))
        self.forgets, self.last = forgets, last

    def __iter__(self) -> Iterator[int]:
        start, self.start = self.start, 0
        last = self.last if start else 32
        for self.given, index in enumerate(super().__iter__(), start=1):
            if start < self.given <= last:
                yield index
        self.given = 0 if self.forgets else self.given


def positioned(**settings: int) -> DataLoader:
    return load(Rows(32), num_workers=0, sampler=Positioned(**settings))


forgetful = partial(positioned, forgets=True)
LOOP, LOOP_BY_EPOCH = "--loop @order:trains", "--loop @order:trains_by_epoch"


def resumable(kind: type, sampler: Sampler, workers: int = 2) -> DataLoader:
    return kind(Rows(48), batch_size=4, num_workers=workers, sampler=sampler)


CASES = {
    "DP14": [
        bug(
            "one order for all epochs",
            lambda: load(Rows(), sampler=Untold(24)),
            says="Random.shuffle",
        ),
        bug(
            "a sampler that ignores its epoch",
            lambda: load(Rows(), sampler=Shuffled(24, deaf=True)),
        ),
        bug("a loop without set_epoch", distributed, f"{RANKS} {LOOP}"),
        bug(
            "a loop without set_epoch, of restless rows",
            lambda: DataLoader(Rows(48), batch_sampler=Restless(48, batch=4)),
            LOOP,
            says="which the loop does not call",
        ),
        bug("a generator of which workers have copies", lambda: load(HeldStream()), says="copy"),
        bug(
            "rows by an epoch that workers miss",
            lambda: load(NoisyByEpoch(), persistent_workers=True),
            says="persistent workers",
        ),
        bug(
            "rows by an epoch that workers miss, in another order in each",
            lambda: load(NoisyByEpoch(), sampler=Shuffled(24), persistent_workers=True),
            says="persistent workers",
        ),
        bug(
            "a sampler and shuffle",
            lambda: DataLoader(Rows(), sampler=Shuffled(24), shuffle=True),
            says="mutually exclusive",
        ),
        bug(
            "an epoch workers miss",
            lambda: load(ShuffledStream(shared=False), persistent_workers=True),
        ),
        twin(
            "an epoch in shared memory", lambda: load(ShuffledStream(True), persistent_workers=True)
        ),
        passing(
            "an epoch for new workers", lambda: load(ShuffledStream(shared=False)), LOOP_BY_EPOCH
        ),
        twin("rows by an epoch for new workers", lambda: load(NoisyByEpoch())),
        twin("rows as they stand", lambda: load(Rows()), verdict="not applicable"),
        twin("others drawn", lambda: load(Drawing()), verdict="not applicable"),
        undecided(
            "an order that was read up",
            lambda: load(Rows(), sampler=Kept(24)),
            says="no two orders",
        ),
        undecided("a pass of many epochs", of_steps, says="a pass draws each sample several times"),
        passing("a pass of many epochs, and a loop", of_steps, "--loop @order:trains_once"),
        bug("many passes of many epochs", of_steps, LOOP, says="come in one order"),
        undecided(
            "a loop that sets an epoch without a method",
            lambda: load(UntoldStream(shared=False)),
            "--loop @order:trains_by_attribute",
            says="unless the loop sets dataset.epoch, as it does",
        ),
        undecided(
            "a sampler that a stream holds",
            lambda: load(SampledStream()),
            says="the order changes only after set_epoch",
        ),
        passing(
            "a loop that tells a stream's sampler", lambda: load(SampledStream()), LOOP_BY_EPOCH
        ),
        bug(
            "persistent copies of a stream's sampler",
            lambda: load(SampledStream(), persistent_workers=True),
            LOOP_BY_EPOCH,
            says="persistent workers miss it",
        ),
        undecided("no loop is given", distributed, RANKS),
        undecided(
            "an epoch that is heard of one late",
            lambda: plain.Infinite(sampler=DistributedSampler(plain.Squares())),
            RANKS,
            says="only after set_epoch",
        ),
        twin(
            "a seeded generator", lambda: train(Rows(), generator=torch.Generator().manual_seed(0))
        ),
        passing("a loop with set_epoch", distributed, f"{RANKS} {LOOP_BY_EPOCH}"),
        passing(
            "a loop that sets the epoch", distributed, f"{RANKS} --loop @order:trains_by_attribute"
        ),
        bug(
            "a loop that stays in the first epoch",
            distributed,
            f"{RANKS} --loop @order:trains_on_the_first",
            says="the loop calls [['sampler', 0], ['sampler', 0]]",
        ),
    ],
    "resume": [
        bug("an epoch that starts again", lambda: resumable(Replays, Shuffled(48))),
        bug(
            "rows drawn ahead are skipped",
            lambda: resumable(DataLoader, Counting(48)),
            says="samples skipped",
        ),
        bug("a rest in another order", lambda: resumable(Resumable, Reorders(48))),
        bug("a new order that is skipped into", Nodes, says="replayed and"),
        bug("a state that is refused", Refusing, says="it raises IndexError: list index"),
        bug("a next epoch of nothing", positioned, says="next epoch has 0 of 32 samples"),
        bug(
            "a loop does not say which epoch a state is of",
            forgetful,
            LOOP,
            also=("DP14",),
            says="set_epoch was not called",
        ),
        bug(
            "an epoch without its tail",
            lambda: forgetful(last=28),
            LOOP_BY_EPOCH,
            says="restored in mid-epoch 1 by sampler: 4 samples skipped",
        ),
        undecided(
            "nobody says which epoch a state is of",
            forgetful,
            says="right only if set_epoch is called",
        ),
        passing(
            "a loop says which epoch a state is of", forgetful, LOOP_BY_EPOCH, says="after epoch 0"
        ),
        twin("batches counted as seen", lambda: resumable(Resumable, Shuffled(48))),
        passing(
            "drawn without workers",
            lambda: resumable(DataLoader, Counting(48), workers=0),
            says="by sampler",
        ),
        twin(
            "a state of what is held",
            lambda: DataLoader(Holding(48), batch_size=4, shuffle=True),
            verdict="not applicable",
        ),
        twin("no state at all", lambda: train(Rows(48)), verdict="not applicable"),
    ],
}
