"""Loaders with a bug of the loader's contract each, and correct ones that look like them."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path

import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    default_collate,
)


class Rows(Dataset):
    """Rows of 5 numbers that say their index, through `transform`."""

    def __init__(self, length: int = 24, transform=None, claimed: int = 0) -> None:
        self.rows = [torch.arange(5.0) + index for index in range(length)]
        self.transform, self.count = transform, length + claimed

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, object]:
        row = self.rows[index]
        return {"row": self.transform(row) if self.transform else row, "index": index}


class Ragged(Rows):
    """Only sample 20 is longer."""

    def __getitem__(self, index: int) -> dict[str, object]:
        return {"row": torch.ones(5 + (index == 20)), "index": index}


class Sorted(Rows):
    """As long as its neighbours in a batch of 4, if they come in order."""

    def __getitem__(self, index: int) -> dict[str, object]:
        return {"row": torch.ones(5 + index // 4), "index": index}


class Texts(Rows):
    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.arange(1, 3 + index % 5)


class Wrapping(Rows):
    def __getitem__(self, index: int) -> dict[str, object]:
        return super().__getitem__(index % len(self.rows))


class Repeating(Wrapping):
    """Gives its rows several times in an epoch, on purpose."""

    def __init__(self, times: int, length: int = 24) -> None:
        super().__init__(length // 2)
        self.times, self.count = times, length


class Endless(Rows):
    """Makes a sample for any index, as data sets of made-up samples do."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.rand(3), 0


class Stream(IterableDataset):
    def __init__(self, claimed: int) -> None:
        self.claimed = claimed

    def __len__(self) -> int:
        return self.claimed

    def __iter__(self):
        return iter(torch.arange(24.0))


class Caching(Dataset):
    def __init__(self, most: int, length: int = 10**8) -> None:
        self.most, self.length, self.cache = most, length, {}

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        if index not in self.cache:
            if len(self.cache) >= self.most:
                self.cache.pop(next(iter(self.cache)))
            self.cache[index] = torch.full((20_000,), float(index))
        return self.cache[index][0]


class Unbounded(Caching):
    def __init__(self, length: int = 10**8) -> None:
        super().__init__(0, length)

    def __getitem__(self, index: int) -> torch.Tensor:
        self.cache.setdefault(index, torch.full((20_000,), float(index)))
        return self.cache[index][0]


class Speaking(Unbounded):
    """Speaks of the length of its cache, and does nothing about it."""

    def __getitem__(self, index: int) -> torch.Tensor:
        if len(self.cache) > 400 and index % 1000 == 0:
            print("the cache is large")
        return super().__getitem__(index)


@functools.lru_cache(4)
def few(index: int) -> int:
    return index


class Beside(Unbounded):
    """Has a bounded cache too."""

    def __getitem__(self, index: int) -> torch.Tensor:
        return super().__getitem__(few(index))


class Forgetful(Rows):
    """Loses its transform when it is pickled."""

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "transform": None}


class Files(Rows):
    def __init__(self, files: list[str]) -> None:
        super().__init__(len(files))
        self.files = files

    def __getitem__(self, index: int) -> str:
        return Path(self.files[index]).read_text()


class Batch:
    def __init__(self, samples: list[dict]) -> None:
        self.rows = torch.stack([sample["row"] for sample in samples])


class Pinned(Batch):
    def pin_memory(self):
        self.rows = self.rows.pin_memory()
        return self


class Dropped(Batch):
    def pin_memory(self):
        self.rows = self.rows.pin_memory()


class Normed(torch.nn.Module):
    def __init__(self, norm: torch.nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, batch):
        return self.norm(batch["row"]).pow(2).mean()


def batch_norm():
    return Normed(torch.nn.BatchNorm1d(5))


def group_norm():
    return Normed(torch.nn.GroupNorm(1, 5))


def frozen_norm():
    model = batch_norm()
    model.norm.eval()
    return model


class Shapes(torch.nn.Module):
    """A model without weights."""

    def __init__(self, norm: type, *sizes: int) -> None:
        super().__init__()
        self.norm = norm(*sizes, device="meta")

    def training_step(self, batch: Batch, step: int) -> torch.Tensor:
        return self.norm(batch.rows.to("meta")).mean()


def shapes_of_batch_norm():
    return Shapes(torch.nn.BatchNorm1d, 5)


def shapes_of_group_norm():
    return Shapes(torch.nn.GroupNorm, 1, 5)


class Given:
    """Batches of a class of its own, of samples that it names."""

    def __iter__(self) -> Iterator[Batch]:
        return (Batch([Rows()[row] for row in rows]) for rows in (range(4), range(4, 8), [8]))

    def sample_ids(self, batch: Batch) -> list[int]:
        return batch.rows[:, 0].long().tolist()


def padded(samples):
    return pad_sequence(samples, batch_first=True)


def padded_with_mask(samples):
    return {
        "ids": padded(samples),
        "attention_mask": padded([torch.ones_like(each) for each in samples]),
    }


def double(row, by=2):
    return row * by


class Chain:
    def __init__(self, *steps) -> None:
        self.steps = steps

    def __call__(self, row):
        return functools.reduce(lambda value, step: step(value), self.steps, row)


def load(data: Dataset, **options) -> DataLoader:
    return DataLoader(data, **{"batch_size": 4, "shuffle": True, "num_workers": 1, **options})


def make(name: str, **options) -> DataLoader:
    """The loader of a row of the test's table."""
    if "files" in options:
        return load(Files(options["files"]))
    return {
        "good": lambda: load(Rows()),
        "ragged": lambda: load(Ragged()),
        "sorted": lambda: load(Sorted(), shuffle=False),
        "sorted and shuffled": lambda: load(Sorted()),
        "padded": lambda: load(Texts(), collate_fn=padded),
        "padded with mask": lambda: load(Texts(), collate_fn=padded_with_mask),
        "pins nothing": lambda: load(Rows(), pin_memory=True, collate_fn=Batch),
        "pins": lambda: load(Rows(), pin_memory=True, collate_fn=Pinned),
        "pins to None": lambda: load(Rows(), pin_memory=True, collate_fn=Dropped),
        "pins dicts": lambda: load(Rows(), pin_memory=True),
        "lambda": lambda: load(Rows(transform=Chain(double, lambda row: row + 1))),
        "lambda that is forked": lambda: load(
            Rows(),
            collate_fn=lambda samples: default_collate(samples),
            multiprocessing_context="fork",
        ),
        "forgetful": lambda: load(Forgetful(transform=double)),
        "partial": lambda: load(
            Rows(transform=Chain(functools.partial(double, by=3), torch.rand_like))
        ),
        "wraps": lambda: load(Wrapping()),
        "repeats on purpose": lambda: load(Repeating(times=2)),
        "repeats more than it says": lambda: load(Repeating(times=3)),
        "too long": lambda: load(Rows(claimed=2)),
        "too short": lambda: load(Rows(claimed=-3)),
        "made up": lambda: load(Endless()),
        "stream": lambda: DataLoader(Stream(24), batch_size=4),
        "stream that says less": lambda: DataLoader(Stream(20), batch_size=4),
        "one is left": lambda: DataLoader(
            Rows(18), batch_size=4, sampler=DistributedSampler(Rows(18))
        ),
        "given": Given,
        "too few": lambda: load(Rows(3), drop_last=True),
        "cache": lambda: load(Unbounded(), shuffle=False),
        "cache that fits": lambda: load(Unbounded(400), shuffle=False),
        "bounded cache": lambda: load(Caching(50), shuffle=False),
        "large cache": lambda: load(Caching(400), shuffle=False),
        "cache that is spoken of": lambda: load(Speaking(), shuffle=False),
        "cache beside a bounded one": lambda: load(Beside(), shuffle=False),
    }[name]()
