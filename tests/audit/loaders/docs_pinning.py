"""PyTorch documentation, "Memory Pinning": SimpleCustomBatch, and the same without its method."""

import torch
from torch.utils.data import DataLoader, TensorDataset


class WithoutMethod:
    def __init__(self, data):
        transposed_data = list(zip(*data, strict=False))
        self.inp = torch.stack(transposed_data[0], 0)
        self.tgt = torch.stack(transposed_data[1], 0)


class SimpleCustomBatch(WithoutMethod):
    # custom memory pinning method on custom type
    def pin_memory(self):
        self.inp = self.inp.pin_memory()
        self.tgt = self.tgt.pin_memory()
        return self


def dataset():
    inps = torch.arange(10 * 5, dtype=torch.float32).view(10, 5)
    tgts = torch.arange(10 * 5, dtype=torch.float32).view(10, 5)
    return TensorDataset(inps, tgts)


def with_method():
    return DataLoader(dataset(), batch_size=2, collate_fn=SimpleCustomBatch, pin_memory=True)


def without_method():
    return DataLoader(dataset(), batch_size=2, collate_fn=WithoutMethod, pin_memory=True)
