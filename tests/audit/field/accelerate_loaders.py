"""accelerate, after its quick tour and the threads on shares and restarts."""

from __future__ import annotations

from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from tests.audit.field.data import Rows
from tests.audit.field.datasets_loaders import rows


def in_order():
    from accelerate import Accelerator

    return Accelerator(cpu=True).prepare(DataLoader(Rows(), batch_size=4))


def split_batches():
    from accelerate import Accelerator, DataLoaderConfiguration

    config = DataLoaderConfiguration(split_batches=True)
    loader = DataLoader(Rows(), batch_size=8)
    return Accelerator(cpu=True, dataloader_config=config).prepare(loader)


def stream():
    from accelerate import Accelerator, DataLoaderConfiguration

    config = DataLoaderConfiguration(dispatch_batches=False)
    dataset = rows().to_iterable_dataset(num_shards=8).with_format("torch")
    loader = DataLoader(dataset, batch_size=4)
    return Accelerator(cpu=True, dataloader_config=config).prepare(loader)


def shuffled():
    """huggingface/accelerate#4195, by skip_first_batches."""
    from accelerate import Accelerator

    return Accelerator(cpu=True).prepare(DataLoader(Rows(), batch_size=4, shuffle=True))


def stateful():
    """huggingface/accelerate#4195, by the loader's own state."""
    from accelerate import Accelerator, DataLoaderConfiguration
    from accelerate.utils import set_seed

    set_seed(1234)
    config = DataLoaderConfiguration(use_stateful_dataloader=True, use_seedable_sampler=True)
    loader = DataLoader(Rows(), batch_size=4, shuffle=True)
    return Accelerator(cpu=True, dataloader_config=config).prepare(loader)


def twice():
    """huggingface/accelerate#4199: a DistributedSampler, and shared out again."""
    from accelerate import Accelerator

    dataset = Rows()
    loader = DataLoader(dataset, batch_size=4, sampler=DistributedSampler(dataset))
    return Accelerator(cpu=True).prepare(loader)


def stream_twice():
    """huggingface/accelerate#3547: a share of a stream, shared out again."""
    import torch.distributed as dist
    from accelerate import Accelerator
    from datasets.distributed import split_dataset_by_node

    dataset = rows().to_iterable_dataset(num_shards=8).with_format("torch")
    share = split_dataset_by_node(dataset, dist.get_rank(), dist.get_world_size())
    return Accelerator(cpu=True).prepare(DataLoader(share, batch_size=4))
