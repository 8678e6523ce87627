"""torchdata: StatefulDataLoader with a StatefulDistributedSampler."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

from tests.exactness.adapters import About, Place, Setting, Stateful

ABOUT = About(
    title="torchdata StatefulDataLoader, StatefulDistributedSampler",
    packages=("torchdata", "torch"),
    follows="torchdata 0.11, Stateful DataLoader Tutorial, Saving and loading state; set_epoch as"
    " torch says of DistributedSampler",
    promise="mid-epoch checkpoints; state is not distributed across ranks",
    promised=("same",),
)


def write(folder: Path, samples: int) -> None:
    """Nothing: the samples are their numbers."""


class SamplerBatches(Stateful):
    def __init__(self, setting: Setting, place: Place) -> None:
        numbers = list(range(setting.samples))
        self.sampler = StatefulDistributedSampler(
            numbers, num_replicas=place.world_size, rank=place.rank, seed=setting.seed
        )
        self.loader = StatefulDataLoader(
            numbers, setting.batch_size, sampler=self.sampler, num_workers=place.workers
        )

    def batches(self, epoch: int) -> Iterator[list[int]]:
        self.sampler.set_epoch(epoch)
        for batch in self.loader:
            yield batch.tolist()


open = SamplerBatches
