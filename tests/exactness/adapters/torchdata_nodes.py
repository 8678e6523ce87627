"""torchdata.nodes: a StatefulDistributedSampler in a SamplerWrapper, mapped, in batches."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from torchdata import nodes
from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

from tests.exactness.adapters import About, Place, Setting, Stateful

ABOUT = About(
    title="torchdata.nodes Loader",
    packages=("torchdata", "torch"),
    follows="torchdata 0.11, Migrating to torchdata.nodes, map-style dataset",
    promise="checkpoints in the middle of an epoch",
    promised=("same",),
)


def write(folder: Path, samples: int) -> None:
    """Nothing: the samples are their numbers."""


class NodeBatches(Stateful):
    def __init__(self, setting: Setting, place: Place) -> None:
        numbers = list(range(setting.samples))
        sampler = StatefulDistributedSampler(
            numbers, num_replicas=place.world_size, rank=place.rank, seed=setting.seed
        )
        node = nodes.SamplerWrapper(sampler)
        if place.workers:
            node = nodes.ParallelMapper(node, numbers.__getitem__, place.workers, method="thread")
        self.loader = nodes.Loader(nodes.Batcher(node, setting.batch_size, drop_last=False))

    def batches(self, epoch: int) -> Iterator[list[int]]:
        """The wrapper sets the epoch of its sampler by itself: one more at each pass."""
        yield from self.loader

    def close(self) -> None:
        self.loader.root.shutdown() if hasattr(self.loader.root, "shutdown") else None


open = NodeBatches
