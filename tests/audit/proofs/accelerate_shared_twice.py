"""huggingface/accelerate#4199: a DistributedSampler, and prepare shares out again.

Needs accelerate and torch; starts two gloo ranks by itself.
"""

from __future__ import annotations

import os

import accelerate
import torch
import torch.distributed as dist
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def train(rank, world):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world))
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29541")
    accelerator = Accelerator(cpu=True)
    dataset = TensorDataset(torch.arange(64))
    loader = DataLoader(dataset, batch_size=4, sampler=DistributedSampler(dataset))
    mine = [number for (batch,) in accelerator.prepare(loader) for number in batch.tolist()]
    shares = [None] * world
    dist.all_gather_object(shares, mine)
    if rank == 0:
        came = {number for share in shares for number in share}
        print(f"accelerate {accelerate.__version__}, torch {torch.__version__}")
        print(f"samples of ranks: {[len(share) for share in shares]}")
        print(f"{64 - len(came)} of 64 samples come nowhere")


if __name__ == "__main__":
    torch.multiprocessing.spawn(train, args=(2,), nprocs=2)
