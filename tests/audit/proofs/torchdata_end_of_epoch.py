"""torchdata: a restart from the state that was saved when an epoch had ended.

meta-pytorch/data#1513. Needs torch and torchdata.
"""

from __future__ import annotations

from importlib.metadata import version

import torch
from torch.utils.data import RandomSampler, TensorDataset
from torchdata import nodes
from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

DATA = TensorDataset(torch.arange(64))


def by_sampler():
    sampler = StatefulDistributedSampler(DATA, num_replicas=1, rank=0, shuffle=True)
    return StatefulDataLoader(DATA, batch_size=4, sampler=sampler)


def by_nodes():
    torch.manual_seed(0)
    rows = nodes.Mapper(nodes.SamplerWrapper(RandomSampler(DATA)), DATA.__getitem__)
    return nodes.Loader(nodes.Batcher(rows, 4, drop_last=False))


def numbers(batch):
    parts = batch if isinstance(batch[0], tuple) else [batch]
    return [number for (part,) in parts for number in part.reshape(-1).tolist()]


def main():
    print(f"torchdata {version('torchdata')}, torch {torch.__version__}")
    for make in (by_sampler, by_nodes):
        first = make()
        for _ in first:
            pass
        restored = make()
        restored.load_state_dict(first.state_dict())
        counts = [sum(len(numbers(batch)) for batch in restored) for _ in range(2)]
        print(f"{make.__name__}: samples of the two passes after a restart: {counts}, of 64")

    first = by_nodes()
    for _ in first:
        pass
    due = []
    for step, batch in enumerate(first, 1):
        due.append(numbers(batch))
        if step == 5:
            state = first.state_dict()
    restored = by_nodes()
    restored.load_state_dict(state)
    came = {number for batch in restored for number in numbers(batch)}
    left = {number for batch in due[5:] for number in batch}
    print(f"by_nodes, in mid-epoch 1: {len(came - left)} replayed, {len(left - came)} skipped")


if __name__ == "__main__":
    main()
