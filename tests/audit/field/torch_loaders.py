"""torch.utils.data, after its documentation and the issues of its users."""

from __future__ import annotations

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    IterableDataset,
    RandomSampler,
    StackDataset,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
    get_worker_info,
    random_split,
)
from torch.utils.data.distributed import DistributedSampler

from tests.audit.field.data import Rows


def told(loader):
    """A training loop that tells the sampler its epoch."""
    for epoch in range(2):
        loader.sampler.set_epoch(epoch)
        for _ in loader:
            pass


def untold(loader):
    """A training loop that does not."""
    for _ in range(2):
        for _ in loader:
            pass


def shuffled():
    return DataLoader(Rows(), batch_size=8, shuffle=True, num_workers=2)


def persistent():
    options = {"persistent_workers": True, "prefetch_factor": 4}
    return DataLoader(Rows(), batch_size=8, shuffle=True, num_workers=2, **options)


def in_order():
    return DataLoader(Rows(), batch_size=10)


def split():
    parts = ConcatDataset([Rows(), Rows()])
    train, _ = random_split(
        Subset(parts, range(64)), [48, 16], generator=torch.Generator().manual_seed(0)
    )
    return DataLoader(train, batch_size=8, shuffle=True, num_workers=2)


def stacked():
    values = torch.arange(128.0).view(64, 2)
    dataset = StackDataset(image=TensorDataset(values), label=torch.arange(64))
    return DataLoader(dataset, batch_size=8, shuffle=True, drop_last=True)


def batch_sampler():
    dataset = Rows()
    batches = BatchSampler(RandomSampler(dataset), batch_size=6, drop_last=False)
    return DataLoader(dataset, batch_sampler=batches, num_workers=2)


def whole_batches():
    """Automatic batching switched off: the sampler's lists are the indices."""
    values = TensorDataset(torch.arange(128.0).view(64, 2))
    batches = BatchSampler(RandomSampler(values), batch_size=8, drop_last=False)
    return DataLoader(values, sampler=batches, batch_size=None)


def weighted():
    sampler = WeightedRandomSampler([1.0] * 32 + [3.0] * 32, num_samples=64)
    return DataLoader(Rows(), batch_size=8, sampler=sampler, num_workers=2)


def distributed():
    dataset = Rows()
    return DataLoader(dataset, batch_size=8, sampler=DistributedSampler(dataset), num_workers=2)


def no_sampler():
    return DataLoader(Rows(), batch_size=8, shuffle=True, num_workers=2)


class Stream(IterableDataset):
    def __init__(self, is_split=True):
        self.is_split = is_split

    def __iter__(self):
        info = get_worker_info()
        step = info.num_workers if info and self.is_split else 1
        first = info.id if info and self.is_split else 0
        return (Rows()[row] for row in range(first, 64, step))


def stream_split():
    return DataLoader(Stream(), batch_size=8, num_workers=2)


def stream_unsplit():
    return DataLoader(Stream(is_split=False), batch_size=8, num_workers=2)


class LongStream(Stream):
    def __len__(self):
        return 80


def stream_length():
    """A length that was counted before samples were filtered."""
    return DataLoader(LongStream(), batch_size=8, num_workers=2)


class EpochStream(Stream):
    epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        rows = list(super().__iter__())
        order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(self.epoch))
        return (rows[place] for place in order)


def stream_epoch():
    """The copies in persistent workers never hear of the epoch (datasets#6673)."""
    return DataLoader(EpochStream(), batch_size=8, num_workers=2, persistent_workers=True)


class Noisy(Rows):
    def __getitem__(self, row):
        sample = super().__getitem__(row)
        return {**sample, "x": sample["x"] + torch.rand(4)}


def noise():
    return DataLoader(Noisy(), batch_size=8, shuffle=True, num_workers=2)


class Generator(Rows):
    def __init__(self):
        self.rng = np.random.default_rng(0)

    def __getitem__(self, row):
        sample = super().__getitem__(row)
        return {**sample, "x": sample["x"] + torch.from_numpy(self.rng.random(4))}


def generator_copied():
    return DataLoader(Generator(), batch_size=8, shuffle=True, num_workers=2)


class NumpyNoise(Rows):
    def __getitem__(self, row):
        sample = super().__getitem__(row)
        return {**sample, "x": sample["x"] + torch.from_numpy(np.random.rand(4))}


def seed_constant(worker):
    np.random.seed(42 + worker)


def worker_constant():
    options = {"num_workers": 2, "worker_init_fn": seed_constant}
    return DataLoader(NumpyNoise(), batch_size=8, shuffle=True, **options)


class Lengths(Rows):
    def __getitem__(self, row):
        return torch.arange(float(row % 5 + 1)) + super().__getitem__(row)["id"]


def pad(samples):
    return pad_sequence(samples, batch_first=True)


def padded():
    return DataLoader(Lengths(), batch_size=8, shuffle=True, num_workers=2, collate_fn=pad)


def unequal():
    return DataLoader(Lengths(), batch_size=8, shuffle=True, num_workers=2)


class Wrapping(Rows):
    def __getitem__(self, row):
        return super().__getitem__(row % 64)


def wraps():
    return DataLoader(Wrapping(), batch_size=8, shuffle=True, num_workers=2)


class Cached(Rows):
    def __init__(self):
        self.cache = {}

    def __len__(self):
        return 2_000_000

    def __getitem__(self, row):
        if row not in self.cache:
            self.cache[row] = torch.full((25_000,), float(row))
        return self.cache[row][:4]


def cached():
    return DataLoader(Cached(), batch_size=4, shuffle=True, num_workers=2)


def nothing_left():
    return DataLoader(Rows(), batch_size=128, shuffle=True, drop_last=True)


class Images(Rows):
    divisor = 255

    def __getitem__(self, row):
        pixels = torch.Generator().manual_seed(super().__getitem__(row)["id"])
        return torch.randint(0, 256, (3, 8, 8), generator=pixels) / self.divisor, row


class ScaledTwice(Images):
    divisor = 255 * 255


def images():
    return DataLoader(Images(), batch_size=8, shuffle=True, num_workers=2)


def images_twice():
    return DataLoader(ScaledTwice(), batch_size=8, shuffle=True, num_workers=2)
