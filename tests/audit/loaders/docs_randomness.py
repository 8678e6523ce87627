"""PyTorch documentation, notes/randomness, "DataLoader": seed_worker with a generator.

The page leaves open what `train_dataset` is; here one that draws from what seed_worker seeds."""

import random

import numpy
import torch
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler


class Drawn(Dataset):
    def __len__(self):
        return 16

    def __getitem__(self, index):
        if index >= len(self):
            raise IndexError(index)
        return index, numpy.random.rand(), random.random()


def seed_worker(worker_id):
    worker_seed = torch.initial_seed() % 2**32
    numpy.random.seed(worker_seed)
    random.seed(worker_seed)


def loader(sampler=None):
    g = torch.Generator()
    g.manual_seed(0)
    return DataLoader(
        Drawn(),
        batch_size=2,
        num_workers=2,
        worker_init_fn=seed_worker,
        generator=g,
        sampler=sampler,
    )


def distributed():
    """The same under DDP: every rank makes its generator from the same 0."""
    return loader(DistributedSampler(Drawn()))
