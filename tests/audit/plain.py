"""Loaders that the tests of the core run: as a user's file has them, with an error each."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset


class Squares(Dataset):
    def __init__(self, length: int = 12) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, object]:
        return {"square": torch.tensor([float(index**2)]), "index": index}


class Dots(dict):
    """A dict that answers any name that it lacks with None."""

    __getattr__ = dict.get


class Forever:
    def __init__(self, sampler: object) -> None:
        self.sampler = sampler

    def __iter__(self) -> object:
        while True:
            yield from self.sampler


class Infinite(DataLoader):
    """As Ultralytics': one iterator for all epochs."""

    def __init__(self, **settings: object) -> None:
        super().__init__(Squares(), batch_size=4, num_workers=1, **settings)
        object.__setattr__(self, "batch_sampler", Forever(self.batch_sampler))
        self.iterator = super().__iter__()

    def __len__(self) -> int:
        return len(self.batch_sampler.sampler)

    def __iter__(self) -> object:
        return (next(self.iterator) for _ in range(len(self)))


class Sleeping(Squares):
    def __init__(self, first: float = 0) -> None:
        super().__init__()
        self.seconds = {0: first, 5: 1000}

    def __getitem__(self, index: int) -> int:
        time.sleep(self.seconds.get(index, 0))
        return index


class Greedy(Squares):
    def __getitem__(self, index: int) -> int:
        self.hoard = getattr(self, "hoard", []) + [torch.ones(2**27)]
        return index


class Vanishing(Squares):
    def __getitem__(self, index: int) -> int:
        if index == 5:
            print("Traceback (most recent call last):\nKeyError: 5", flush=True)
            os._exit(3)
        return index


class Missing(Squares):
    def __getitem__(self, index: int) -> int:
        return {0: 0}[index]


def load(dataset: object, **settings: object) -> DataLoader:
    """A DataLoader as most people write it: batches of four, two workers."""
    return DataLoader(dataset, **{"batch_size": 4, "num_workers": 2, **settings})


def good(length: int = 12, **options) -> DataLoader:
    return load(Squares(length), **options)


class Named(Squares):
    def __getitem__(self, name: str) -> dict[str, object]:
        return super().__getitem__(int(name.removeprefix("row-")))


def named() -> DataLoader:
    return DataLoader(Named(), batch_size=4, sampler=[f"row-{row}" for row in range(12)])


def in_tuples() -> DataLoader:
    """Its batches are tuples of indices."""
    return DataLoader(Squares(), batch_sampler=[tuple(range(6)), tuple(range(6, 12))])


sleeping = partial(load, Sleeping())
# Its first batch is slow too: nobody can tell whether the next one hangs.
sluggish = partial(load, Sleeping(first=3))


def computing() -> DataLoader:
    """Takes long before there is a loader."""
    until = time.monotonic() + 1000
    while time.monotonic() < until:
        pass
    return good()


greedy = partial(load, Greedy(200))
vanishing = partial(load, Vanishing(), num_workers=0)
missing = partial(load, Missing(), num_workers=0)
unloadable = partial(load, Squares(), batch_size=-1)


class Repeated(Squares):
    """Serves its samples again behind its end."""

    def __getitem__(self, index: int) -> int:
        return index % self.length


class Asleep(Squares):
    def __getitem__(self, index: int) -> int:
        time.sleep(1000)


class Turned(Squares):
    """Its second pass gives the same numbers at other indices, all with one rate."""

    read = 0

    def __getitem__(self, index: int) -> dict[str, int]:
        self.read += 1
        return {"number": (index + (self.read > self.length)) % self.length, "rate": 16000}


class Augmented(IterableDataset):
    """Shuffles within each sample, not the samples."""

    def __iter__(self) -> Iterator[int]:
        for number in range(12):
            random.shuffle([number, number])
            yield number


turned = partial(load, Turned())
augmented = partial(load, Augmented())
repeated = partial(load, Repeated(), num_workers=0)
asleep = partial(load, Asleep(), num_workers=0)


class Module:
    """As Lightning's data modules are."""

    def setup(self, stage: str) -> None:
        self.length = 12

    def train_dataloader(self) -> DataLoader:
        return good(self.length)


class Unmeasured(Squares):
    """Answers to any name, as wrappers and mocks do, but does not say how long it is."""

    def __len__(self) -> int:
        raise RuntimeError("not known yet")

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_: self

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(plain_list)


class Unsendable(Squares):
    def __getitem__(self, index: int) -> Callable:
        return lambda: index


class OfFiles(Squares):
    def __init__(self, files: list[str]) -> None:
        super().__init__(len(files))
        self.files = files

    def __getitem__(self, index: int) -> str:
        return Path(self.files[index]).read_text()


class Crashing(Squares):
    def __getitem__(self, index: int) -> int:
        if index == 5:
            ctypes.string_at(0)
        return index


class Shared(Squares):
    """The script may tell its workers the epoch while they run."""

    def __init__(self) -> None:
        super().__init__()
        self.epoch = multiprocessing.Value("i", 0)


def shared() -> DataLoader:
    return DataLoader(Shared(), batch_size=4, num_workers=1)


unsendable = partial(load, Unsendable(), collate_fn=list)


def of_environment() -> DataLoader:
    """Each rank has its share, as torchrun says which it is; the script joins the group."""
    torch.distributed.init_process_group("gloo")
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    assert rank == int(os.environ["LOCAL_RANK"])
    return DataLoader(Squares(), batch_size=3, sampler=range(rank, 12, world))


def of_first_rank() -> DataLoader:
    if os.environ["RANK"] != "0":
        raise ValueError("for the first rank alone")
    return good()


def of_files(files: list[str]) -> DataLoader:
    return DataLoader(OfFiles(files), batch_size=4)


crashing = partial(load, Crashing(), num_workers=0)


def stopped() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(60)  # continued, it is still here when another thread writes the stacks


def parricide() -> None:
    """As the kernel may do where memory is short."""
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(60)


def by_split() -> dict[str, DataLoader]:
    return {"train": good(), "val": good()}


def train_and_val() -> tuple[DataLoader, DataLoader]:
    return good(), good()


plain_list = [torch.zeros(4, 2), torch.ones(4, 2)]


def ending() -> object:
    return iter(plain_list)


class BeginsAgain:
    """Its own iterator, as Lightning's CombinedLoader."""

    def __iter__(self) -> BeginsAgain:
        self.batches = iter(plain_list)
        return self

    def __next__(self) -> torch.Tensor:
        return next(self.batches)

    def __len__(self) -> int:
        return len(plain_list)


here = Path(__file__)
