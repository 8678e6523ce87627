"""DP4 to DP8: what DataLoader asks of a data set, a collate function and a batch."""

from __future__ import annotations

import multiprocessing
from collections import namedtuple
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Sampler, Subset, default_collate

from tests.audit.mutants import PICKLED, RANKS, bug, passing, twin, undecided
from tests.audit.mutants.rows import Rows, Sized, load, numbers, row, spread, train
from tests.audit.mutants.vision import Compose


def ragged(index: int) -> dict:
    return {"x": numbers(index, 3 + index % 4), "id": index}


def labelled(index: int) -> dict:
    return {"x": numbers(index), "label": index % 2}


def noisy(index: int) -> dict:
    return {"x": numbers(index) + torch.rand(4), "id": index}


def one_long(index: int) -> dict:
    return {"x": numbers(index, 5 if index == 17 else 4), "id": index}


def like_neighbours(index: int) -> dict:
    """As long as the others of a batch of four, if they come in order."""
    return {"x": numbers(index, 3 + index // 4), "id": index}


def listed(samples: list) -> dict:
    return {
        "x": [sample["x"] for sample in samples],
        "id": torch.tensor([s["id"] for s in samples]),
    }


def padded(samples: list) -> dict:
    lengths = torch.tensor([len(sample["x"]) for sample in samples])
    return {
        "x": pad_sequence([sample["x"] for sample in samples], batch_first=True),
        "lengths": lengths,
    }


class CountsEpochs:
    """An order of 24 rows that is new whenever it is asked for."""

    epoch = 0

    def __len__(self) -> int:
        return 24

    def __iter__(self) -> Iterator[int]:
        self.epoch += 1
        order = torch.randperm(24, generator=torch.Generator().manual_seed(self.epoch))
        return iter(order.tolist())


class Batch:
    """A batch of a class of its own."""

    def __init__(self, samples: list) -> None:
        self.x = torch.stack([sample["x"] for sample in samples])
        self.id = torch.tensor([sample["id"] for sample in samples])


class PinsNothing(Batch):
    def pin_memory(self) -> None:
        self.x = self.x.pin_memory()


class PinsHalf(Batch):
    def pin_memory(self) -> PinsHalf:
        pinned = object.__new__(PinsHalf)
        pinned.x = self.x.pin_memory()
        return pinned


class Pins(Batch):
    def pin_memory(self) -> Pins:
        self.x, self.id = self.x.pin_memory(), self.id.pin_memory()
        return self


Pair = namedtuple("Pair", "x id")


def inside_a_dict(samples: list) -> dict:
    return {"batch": Batch(samples), "size": len(samples)}


def as_pair(samples: list) -> Pair:
    return Pair(torch.stack([s["x"] for s in samples]), [str(s["id"]) for s in samples])


class Scaled:
    """Rows through a transform."""

    def __init__(self, transform: Callable) -> None:
        self.transform = transform

    def __call__(self, index: int) -> dict:
        return {"x": self.transform(numbers(index)), "id": index}


class Forgets(Scaled):
    """Its transform does not travel to a worker that unpickles it."""

    def __getstate__(self) -> dict:
        return {"transform": torch.abs}


class Times:
    def __init__(self, factor: float) -> None:
        self.factor = factor

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor


class Shared:
    """Times a factor that the script may change while workers run."""

    def __init__(self, factor: float) -> None:
        self.factor = multiprocessing.Value("d", factor)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor.value


def times(x: torch.Tensor, factor: float) -> torch.Tensor:
    return x * factor


def times_two(x: torch.Tensor) -> torch.Tensor:
    return x * 2


FACTOR = 1.0


def times_the_module_factor(x: torch.Tensor) -> torch.Tensor:
    return x * FACTOR


def module_factor_set_by_the_script() -> DataLoader:
    global FACTOR
    FACTOR = 2.0
    return load(Rows(make=Scaled(times_the_module_factor)))


def local_collate() -> DataLoader:
    return load(Rows(), collate_fn=lambda samples: padded(samples))


class FromFile:
    """Rows with a byte of a file, which is opened at once or by each process."""

    def __init__(self, folder: str, at_once: bool) -> None:
        self.path = Path(folder) / "bytes.bin"
        self.file = self.path.open("rb") if at_once else None

    def __call__(self, index: int) -> dict:
        self.file = self.file or self.path.open("rb")
        self.file.seek(index)
        return {"x": numbers(index), "byte": self.file.read(1)[0]}


class LeftOpen(FromFile):
    """A file that is not sent to workers, and that those which are forked share."""

    def __getstate__(self) -> dict:
        return {**vars(self), "file": None}


class Items(Rows):
    """Rows listed in `items`; `__len__` and `__getitem__` need not agree about them."""

    def __init__(
        self,
        items: int,
        length: int,
        wraps: bool = False,
        make: Callable = row,
        step: int = 1,
    ) -> None:
        super().__init__(length, make)
        self.items, self.wraps, self.step = list(range(0, items * step, step)), wraps, step

    def __getitem__(self, index: int) -> dict:
        item = self.items[index % len(self.items) if self.wraps else index]
        return self.make(item // self.step)


class Skips(Items):
    """Gives the next row for one that cannot be read."""

    def __getitem__(self, index: int) -> dict:
        try:
            return super().__getitem__(index)
        except IndexError:
            return self[(index + 1) % len(self)]


class Repeating(Items):
    """Gives its rows several times in an epoch, on purpose: as often as `times` says."""

    def __init__(self, times: int) -> None:
        super().__init__(12, 24, wraps=True)
        self.times = times


class Doubled(Items):
    """Gives its rows as often as its class says."""

    TIMES = 2

    def __len__(self) -> int:
        return len(self.items) * self.TIMES


class WithNext(Items):
    """Rows with the one behind them, of which there is none behind the last."""

    def __getitem__(self, index: int) -> dict:
        following = torch.tensor(self.items[index + 1 : index + 2])
        return {**super().__getitem__(index), "next": following}


class Grows:
    """An order of more rows in each epoch, which counts its epochs at their end."""

    most = 12

    def __len__(self) -> int:
        return self.most

    def __iter__(self) -> Iterator[int]:
        yield from torch.randperm(self.most).tolist()
        self.most += 4


class CountsDown:
    """A batch sampler whose length is that of what is left, as nanotron's: after two epochs it is
    negative."""

    def __init__(self, rows: int) -> None:
        self.left = rows

    def __len__(self) -> int:
        return self.left // 4

    def __iter__(self) -> Iterator[list[int]]:
        for start in range(0, 24, 4):
            self.left -= 4
            yield list(range(start, start + 4))


class Endless(Rows):
    """Makes a row for any index: there is no list behind it."""

    def __getitem__(self, index: int) -> dict:
        return row(index)


class Forever(Sampler):
    """Has no length."""

    def __iter__(self) -> Iterator[int]:
        while True:
            yield from torch.randperm(24).tolist()


def forever() -> DataLoader:
    return load(Rows(), sampler=Forever())


class Pooled(nn.Module):
    """Rows through a norm of four channels, or of as many as `shape` says."""

    def __init__(self, norm: nn.Module, *shape: int, frozen: bool = False) -> None:
        super().__init__()
        self.norm, self.shape, self.frozen = norm, shape, frozen

    def forward(self, batch: dict) -> torch.Tensor:
        return self.norm(batch["x"].reshape(len(batch["x"]), *self.shape))

    def train(self, mode: bool = True) -> Pooled:
        super().train(mode)
        self.norm.train(mode and not self.frozen)
        return self


class Shapes(nn.Module):
    """A model without weights."""

    def __init__(self, norm: type, *sizes: int) -> None:
        super().__init__()
        self.norm = norm(*sizes, device="meta")

    def training_step(self, batch: Batch, step: int) -> torch.Tensor:
        return self.norm(batch.x.to("meta")).mean()


class Given:
    """Batches of a class of its own, of samples that it names."""

    def __iter__(self) -> Iterator[Batch]:
        groups = (range(4), range(4, 8), [8])
        return (Batch([row(index) for index in group]) for group in groups)

    def sample_ids(self, batch: Batch) -> list[int]:
        return batch.id.tolist()


shapes_of_batch_norm = partial(Shapes, nn.BatchNorm1d, 4)
shapes_of_group_norm = partial(Shapes, nn.GroupNorm, 1, 4)
batch_norm = partial(Pooled, nn.BatchNorm1d(4), 4)
batch_norm_pooled = partial(Pooled, nn.BatchNorm2d(4), 4, 1, 1)
batch_norm_pixels = partial(Pooled, nn.BatchNorm2d(2), 2, 1, 2)
group_norm = partial(Pooled, nn.GroupNorm(2, 4), 4)
frozen_norm = partial(Pooled, nn.BatchNorm1d(4), 4, frozen=True)
BUCKETS = [[first, first + 4, first + 8, first + 12] for first in (3, 1, 0, 2)]
RAGGED = Rows(make=ragged)
one_more = partial(train, Rows(25))


def pinned(collate: Callable) -> DataLoader:
    return load(Rows(), collate_fn=collate, pin_memory=True)


def scaled(transform: Callable) -> DataLoader:
    return load(Rows(make=Scaled(transform)))


CASES = {
    "DP4": [
        bug("ragged rows stacked", lambda: train(RAGGED)),
        bug("one long row, shuffled", lambda: train(Rows(make=one_long))),
        bug(
            "one long row, in order",
            lambda: load(Rows(make=one_long)),
            says="collate_fn raises RuntimeError: stack expects each tensor to be equal size",
        ),
        bug("as long as neighbours, shuffled", lambda: train(Rows(make=like_neighbours))),
        twin("as long as neighbours, in order", lambda: load(Rows(make=like_neighbours))),
        twin("padded with lengths", lambda: train(RAGGED, collate_fn=padded)),
        passing(
            "padded, and nothing says so",
            lambda: train(RAGGED, collate_fn=lambda samples: padded(samples)["x"]),
            methods=("fork",),
        ),
        twin("a list of tensors", lambda: train(RAGGED, collate_fn=listed)),
        twin("ragged rows one a batch", lambda: train(RAGGED, batch_size=1)),
        twin(
            "buckets of equal length",
            lambda: DataLoader(RAGGED, batch_sampler=BUCKETS, num_workers=2),
        ),
    ],
    "DP5": [
        bug("a class of its own", lambda: pinned(Batch), says="not pinned: x"),
        bug("a class inside a dict", lambda: pinned(inside_a_dict)),
        bug("pin_memory returns none", lambda: pinned(PinsNothing), says="returns None"),
        bug("pin_memory loses a field", lambda: pinned(PinsHalf)),
        passing("a class that pins", lambda: pinned(Pins), says="tensors"),
        passing("a named tuple", lambda: pinned(as_pair), says="1 tensors"),
        twin(
            "a class and no pinning",
            lambda: load(Rows(), collate_fn=Batch),
            verdict="not applicable",
            says="pin_memory=False",
        ),
    ],
    "DP6": [
        bug(
            "a lambda as transform",
            lambda: scaled(Compose(times_two, lambda x: x + 1)),
            methods=PICKLED,
            says="dataset cannot be pickled",
        ),
        bug("a local function as collate", local_collate, methods=PICKLED),
        bug(
            "a transform lost",
            lambda: load(Rows(make=Forgets(Times(2.0)))),
            methods=PICKLED,
            says="samples differ from those of fork in",
        ),
        bug(
            "a module variable set by the script", module_factor_set_by_the_script, methods=PICKLED
        ),
        bug(
            "an open file", lambda folder: load(Rows(make=FromFile(folder, True))), methods=PICKLED
        ),
        passing(
            "a lambda where workers are forked",
            lambda: load(
                Rows(),
                collate_fn=lambda samples: default_collate(samples),
                multiprocessing_context="fork",
            ),
            methods=("fork",),
            says="collate_fn",
        ),
        twin("a partial as transform", lambda: scaled(partial(times, factor=2.0))),
        twin("a callable class as transform", lambda: scaled(Times(2.0))),
        twin("a shared value as factor", lambda: scaled(Shared(2.0)), methods=PICKLED),
        undecided(
            "an open file that is not sent",
            lambda folder: load(Rows(make=LeftOpen(folder, True))),
            methods=("fork",),
            says="dataset.make.file is open before the fork",
        ),
        twin(
            "a file opened by each worker", lambda folder: load(Rows(make=FromFile(folder, False)))
        ),
        twin(
            "a sampler that counts its epochs",
            lambda: load(Rows(make=labelled), sampler=CountsEpochs()),
            methods=PICKLED,
        ),
    ],
    "DP7": [
        bug(
            "indices wrap around",
            lambda: train(Items(24, 24, wraps=True)),
            says="[24] gives sample 0 again",
        ),
        bug("a length twice the list", lambda: train(Items(24, 48, wraps=True))),
        bug(
            "a length of one list and a half",
            lambda: train(Items(80, 120, wraps=True)),
            says="[120] gives sample 40 again",
        ),
        undecided(
            "an epoch of as many random draws as it likes",
            lambda: train(Items(24, 30, wraps=True, make=noisy)),
            says="[30] gives sample 6 again",
        ),
        bug("rows three times on purpose, but twice", lambda: train(Repeating(3))),
        bug(
            "a length from before filtering",
            lambda: train(Items(22, 24)),
            says="[23] raises IndexError",
        ),
        bug("a length one short", lambda: train(Items(25, 24)), says="items has 25 items"),
        undecided("a table of offsets with an end", lambda: train(Items(25, 24, step=7))),
        bug(
            "a length of what is left",
            lambda: DataLoader(Rows(), batch_sampler=CountsDown(24)),
            says="len(loader) is 0, rank 0 got 6 batches in epoch 1",
        ),
        bug("a stream shorter than it says", lambda: load(Sized(30))),
        bug(
            "a stream longer than it says",
            lambda: load(Sized(20), num_workers=0),
            says="gives 24 samples",
        ),
        passing("the next row for one that fails", lambda: train(Skips(24, 24))),
        passing("rows twice on purpose", lambda: train(Repeating(2)), says="len is 24"),
        passing("rows twice by the class", lambda: train(Doubled(12, 24, True))),
        passing("rows and the next", lambda: train(WithNext(25, 24))),
        passing("longer epochs", lambda: load(Rows(), sampler=Grows())),
        passing("a stream", lambda: load(Sized(24), num_workers=0)),
        twin("a list that takes negative indices", lambda: train(Items(24, 24))),
        twin(
            "rows in a dict",
            lambda: train(Rows(make=dict(enumerate(map(row, range(24)))).__getitem__)),
        ),
        twin("rows made for any index", lambda: train(Endless())),
        twin("a subset", lambda: train(Subset(Rows(), range(4, 20)))),
    ],
    "DP8": [
        bug("a last batch of one", one_more, "--model @contract:batch_norm"),
        bug(
            "a last batch of one, by shapes",
            Given,
            "--model @contract:shapes_of_batch_norm",
            says="rank 0: step 2",
        ),
        bug("a last batch of one, pooled", one_more, "--model @contract:batch_norm_pooled"),
        twin("group norm", one_more, "--model @contract:group_norm"),
        twin("group norm, by shapes", Given, "--model @contract:shapes_of_group_norm"),
        twin("frozen norm", one_more, "--model @contract:frozen_norm"),
        twin("several pixels", one_more, "--model @contract:batch_norm_pixels"),
        twin("the last dropped", lambda: one_more(drop_last=True), "--model @contract:batch_norm"),
        passing("a sampler without an end", forever, "--epochs 1"),
        undecided("no model", one_more, says="rank 0: step 6"),
        undecided("no model, two ranks", lambda: spread(Rows(18)), RANKS, says="rank 1: step 2"),
    ],
    "DP15": [
        passing("small batches", lambda: train(Rows()), says="2 in the loop"),
    ],
}
