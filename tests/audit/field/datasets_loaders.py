"""datasets, after its pages "Use with PyTorch" and "Stream"."""

from __future__ import annotations

import torch
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from tests.audit.field.data import SAMPLES


def told_by_sampler(loader):
    for epoch in range(2):
        loader.sampler.set_epoch(epoch)
        for _ in loader:
            pass


def told(loader):
    """A training loop that tells the stream its epoch."""
    for epoch in range(2):
        loader.dataset.set_epoch(epoch)
        for _ in loader:
            pass


def rows():
    from datasets import Dataset

    values = torch.arange(SAMPLES * 4.0).view(SAMPLES, 4)
    return Dataset.from_dict({"id": list(range(SAMPLES)), "x": values.tolist()})


def shuffled():
    return DataLoader(rows().with_format("torch"), batch_size=8, shuffle=True, num_workers=2)


def distributed():
    dataset = rows().with_format("torch")
    return DataLoader(dataset, batch_size=8, sampler=DistributedSampler(dataset), num_workers=2)


def distributed_forgotten():
    return DataLoader(rows().with_format("torch"), batch_size=8, shuffle=True, num_workers=2)


def noisy(batch):
    """Add noise to the numbers of a batch."""
    return {"id": batch["id"], "x": [torch.tensor(x) + torch.rand(4) for x in batch["x"]]}


def transformed():
    return DataLoader(rows().with_transform(noisy), batch_size=8, shuffle=True, num_workers=2)


def interleaved():
    from datasets import interleave_datasets

    dataset = interleave_datasets([rows().select(range(32)), rows().select(range(32, 64))])
    return DataLoader(dataset.with_format("torch"), batch_size=8, shuffle=True, num_workers=2)


def stream():
    dataset = rows().to_iterable_dataset(num_shards=8).with_format("torch")
    return DataLoader(dataset, batch_size=8, num_workers=2)


def stream_by_node():
    import torch.distributed as dist
    from datasets.distributed import split_dataset_by_node

    dataset = rows().to_iterable_dataset(num_shards=8).shuffle(seed=42, buffer_size=16)
    share = split_dataset_by_node(dataset, dist.get_rank(), dist.get_world_size())
    return DataLoader(share.with_format("torch"), batch_size=8, num_workers=2)


def stream_state():
    """The stream has the state; no workers hold copies of it."""
    return DataLoader(rows().to_iterable_dataset(num_shards=8).with_format("torch"), batch_size=8)


def stream_state_shuffled():
    """huggingface/datasets#7901."""
    dataset = rows().to_iterable_dataset(num_shards=8).shuffle(seed=42, buffer_size=16)
    return DataLoader(dataset.with_format("torch"), batch_size=8)


def stateful():
    from torchdata.stateful_dataloader import StatefulDataLoader

    dataset = rows().to_iterable_dataset(num_shards=8).shuffle(seed=42, buffer_size=16)
    return StatefulDataLoader(dataset.with_format("torch"), batch_size=8, num_workers=2)
