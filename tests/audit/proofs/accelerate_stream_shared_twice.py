"""huggingface/accelerate#3547: a share of a stream, shared out again by prepare.

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


def train(rank, world):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world))
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29542")
    accelerator = Accelerator(cpu=True)
    rows = Dataset.from_dict({"id": list(range(64))}).to_iterable_dataset(num_shards=8)
    share = split_dataset_by_node(rows.with_format("torch"), rank, world)
    loader = accelerator.prepare(DataLoader(share, batch_size=4))
    mine = [number for batch in loader for number in batch["id"].tolist()]
    shares = [None] * world
    dist.all_gather_object(shares, mine)
    if rank == 0:
        came = {number for share in shares for number in share}
        print(f"accelerate {accelerate.__version__}, datasets {datasets.__version__}")
        print(f"samples of ranks: {[len(share) for share in shares]}")
        print(f"{64 - len(came)} of 64 samples come nowhere")


if __name__ == "__main__":
    torch.multiprocessing.spawn(train, args=(2,), nprocs=2)
