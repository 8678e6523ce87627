"""torchdata: StatefulDataLoader and nodes, after their documentation."""

from __future__ import annotations

import torch
from torch.utils.data import IterableDataset, RandomSampler, default_collate, get_worker_info

from tests.audit.field.data import SAMPLES, Rows


def stateful():
    from torchdata.stateful_dataloader import StatefulDataLoader

    return StatefulDataLoader(Rows(), batch_size=4, shuffle=True, num_workers=2)


def stateful_in_order():
    from torchdata.stateful_dataloader import StatefulDataLoader

    return StatefulDataLoader(Rows(), batch_size=4)


class Counting(IterableDataset):
    """A stream that keeps its place."""

    def __init__(self):
        self.at = 0

    def __iter__(self):
        info = get_worker_info()
        step = info.num_workers if info else 1
        for number in range(self.at, SAMPLES // step):
            self.at = number + 1
            yield Rows()[number * step + (info.id if info else 0)]
        self.at = 0

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


def stateful_stream():
    from torchdata.stateful_dataloader import StatefulDataLoader

    return StatefulDataLoader(Counting(), batch_size=4, num_workers=2)


def distributed_sampler():
    from torchdata.stateful_dataloader import StatefulDataLoader
    from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

    sampler = StatefulDistributedSampler(Rows(), num_replicas=1, rank=0, shuffle=True)
    return StatefulDataLoader(Rows(), batch_size=4, sampler=sampler)


def nodes_random():
    from torchdata import nodes

    dataset = Rows()
    rows = nodes.Mapper(nodes.SamplerWrapper(RandomSampler(dataset)), dataset.__getitem__)
    batches = nodes.Batcher(rows, 4, drop_last=False)
    return nodes.Loader(nodes.Mapper(batches, default_collate))


def nodes_in_order():
    from torchdata import nodes

    rows = nodes.IterableWrapper([Rows()[row] for row in range(SAMPLES)])
    batches = nodes.Batcher(rows, 4, drop_last=False)
    return nodes.Loader(nodes.Mapper(batches, default_collate))


def nodes_weighted():
    from torchdata import nodes

    parts = {
        name: nodes.IterableWrapper([torch.tensor([first + row]) for row in range(32)])
        for name, first in (("a", 0), ("b", 32))
    }
    mixed = nodes.MultiNodeWeightedSampler(parts, {"a": 1.0, "b": 1.0}, seed=0)
    return nodes.Loader(nodes.Mapper(nodes.Batcher(mixed, 4, drop_last=False), default_collate))
