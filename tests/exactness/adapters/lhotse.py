"""Lhotse: a DynamicBucketingSampler, whose state is the checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

from lhotse import CutSet, MonoCut
from lhotse.dataset import DynamicBucketingSampler
from torch.utils.data import DataLoader, Dataset

from tests.exactness.adapters import About, Place, Setting

ABOUT = About(
    title="Lhotse DynamicBucketingSampler",
    packages=("lhotse", "torch"),
    follows="Lhotse, PyTorch Datasets, Restoring sampler's state: continuing the training",
    promise="goes on where it left off without workers; with workers it goes on behind the batches"
    " they have prefetched; another world size is refused",
    promised=("same",),
)


def write(folder: Path, samples: int) -> None:
    cuts = []
    for sample in range(samples):
        duration = 1.0 + sample % 10 / 10
        cuts.append(MonoCut(str(sample), start=0, duration=duration, channel=0))
    CutSet.from_cuts(cuts).to_file(folder / "cuts.jsonl")


class Ids(Dataset):
    """Instead of features: which cuts a batch has. Cuts that are repeated to fill ranks, which
    Lhotse marks in their ids, are left out."""

    def __getitem__(self, cuts: CutSet) -> list[int]:
        return [int(cut.id) for cut in cuts if cut.id.isdecimal()]


class SamplerBatches:
    def __init__(self, setting: Setting, place: Place) -> None:
        self.sampler = DynamicBucketingSampler(
            CutSet.from_file(setting.folder / "cuts.jsonl"),
            max_duration=1.9 * setting.batch_size,
            num_buckets=2,
            shuffle=True,
            seed=setting.seed,
            world_size=place.world_size,
            rank=place.rank,
        )
        self.loader = DataLoader(
            Ids(), batch_size=None, sampler=self.sampler, num_workers=place.workers
        )

    def batches(self, epoch: int) -> Iterator[list[int]]:
        self.loader.sampler.set_epoch(epoch)
        yield from self.loader

    def state(self) -> dict[str, Any]:
        return deepcopy(self.loader.sampler.state_dict())

    def restore(self, state: dict[str, Any]) -> None:
        self.sampler.load_state_dict(state)

    def close(self) -> None:
        self.loader._iterator = None


open = SamplerBatches
