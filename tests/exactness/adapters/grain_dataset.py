"""Grain: a MapDataset, shuffled, sliced by rank, batched, with worker processes."""

from __future__ import annotations

from typing import Any

import grain

from tests.exactness.adapters import grain_loader

ABOUT = grain_loader.ABOUT._replace(
    title="Grain Dataset",
    follows="Grain, Dataset basics, sharding and IterDataset",
    promise="the iterator's state is saved and restored",
)
write = grain_loader.write


class Epochs(grain_loader.Epochs):
    def begin(self, epoch: int) -> Any:
        setting, place = self.setting, self.place
        numbers = grain.MapDataset.range(setting.samples).shuffle(seed=setting.seed + epoch)
        stream = numbers[place.rank :: place.world_size].to_iter_dataset()
        stream = stream.batch(setting.batch_size, drop_remainder=False)
        if place.workers:
            stream = stream.mp_prefetch(grain.MultiprocessingOptions(num_workers=place.workers))
        return iter(stream)


open = Epochs
