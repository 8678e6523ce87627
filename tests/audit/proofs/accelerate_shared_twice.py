"""What is shared out over ranks already, and prepare shares out again: huggingface/accelerate#4199,
a DistributedSampler, and #3547, a share of a stream of datasets.

Needs accelerate, datasets and torch; starts two gloo ranks by itself.
"""

from __future__ import annotations

import os

import accelerate
import datasets
import torch
import torch.distributed as dist
from accelerate import Accelerator
from datasets import Dataset
from datasets.distributed import split_dataset_by_node
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

ROWS = Dataset.from_dict({"id": list(range(64))})


def by_sampler(rank, world):
    rows = ROWS.with_format("torch")
    return DataLoader(rows, batch_size=4, sampler=DistributedSampler(rows))


def by_node(rank, world):
    stream = ROWS.to_iterable_dataset(num_shards=8).with_format("torch")
    return DataLoader(split_dataset_by_node(stream, rank, world), batch_size=4)


def train(rank, world):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world))
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29541")
    accelerator = Accelerator(cpu=True)
    for make in (by_sampler, by_node):
        loader = accelerator.prepare(make(rank, world))
        mine = [number for batch in loader for number in batch["id"].tolist()]
        shares = [None] * world
        dist.all_gather_object(shares, mine)
        if rank == 0:
            came = {number for share in shares for number in share}
            print(f"{make.__name__}: samples of ranks: {[len(share) for share in shares]}")
            print(f"{64 - len(came)} of 64 samples come nowhere")


if __name__ == "__main__":
    print(f"accelerate {accelerate.__version__}, datasets {datasets.__version__}")
    torch.multiprocessing.spawn(train, args=(2,), nprocs=2)
