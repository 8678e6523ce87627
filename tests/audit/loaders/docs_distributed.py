"""PyTorch documentation, DistributedSampler: its example, with the loop as printed and without
set_epoch.

The page leaves open what `dataset` is; here 16 numbers, so that both ranks have as many."""

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def loader():
    dataset = TensorDataset(torch.arange(16))
    sampler = DistributedSampler(dataset) if dist.is_initialized() else None
    return DataLoader(dataset, shuffle=(sampler is None), sampler=sampler)


def with_set_epoch(loader):
    for epoch in range(2):
        if dist.is_initialized():
            loader.sampler.set_epoch(epoch)
        for _batch in loader:
            pass


def without_set_epoch(loader):
    for _epoch in range(2):
        for _batch in loader:
            pass
