"""Grain: a DataLoader of an IndexSampler, whose iterator has the state."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grain

from tests.exactness.adapters import About, Place, Setting

ABOUT = About(
    title="Grain DataLoader",
    packages=("grain",),
    follows="Grain, DataLoader guide, Checkpointing",
    promise="iterators are checkpointed; valid with the same sampler and data source, another"
    " worker count is refused",
    promised=("same",),
    most_processes=2,
)


def write(folder: Path, samples: int) -> None:
    """Nothing: the samples are their numbers."""


class Epochs:
    """An iterator for each epoch. A checkpoint has the epoch beside the iterator's state."""

    def __init__(self, setting: Setting, place: Place) -> None:
        self.setting, self.place = setting, place
        self.epoch = 0
        self.iterator: Any = None
        self.restored: tuple[int, Any] | None = None

    def begin(self, epoch: int) -> Any:
        """The iterator over an epoch of this rank."""
        setting, place = self.setting, self.place
        loader = grain.DataLoader(
            data_source=range(setting.samples),
            sampler=grain.samplers.IndexSampler(
                setting.samples, shuffle=True, seed=setting.seed + epoch, num_epochs=1
            ),
            operations=[grain.transforms.Batch(setting.batch_size, drop_remainder=False)],
            worker_count=place.workers,
            shard_options=grain.sharding.ShardOptions(place.rank, place.world_size),
        )
        return iter(loader)

    def batches(self, epoch: int) -> Iterator[list[int]]:
        self.epoch, self.iterator = epoch, self.begin(epoch)
        if self.restored is not None and self.restored[0] == epoch:
            self.iterator.set_state(self.restored[1])
        self.restored = None
        for batch in self.iterator:
            yield batch.tolist()

    def state(self) -> tuple[int, Any]:
        if self.iterator is None:
            return self.restored or (self.epoch, self.begin(self.epoch).get_state())
        return self.epoch, self.iterator.get_state()

    def restore(self, state: tuple[int, Any]) -> None:
        self.epoch, self.restored = state[0], state

    def close(self) -> None:
        if hasattr(self.iterator, "close"):
            self.iterator.close()


open = Epochs
