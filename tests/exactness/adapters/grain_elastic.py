"""Grain: the experimental ElasticIterator, for another number of ranks."""

from __future__ import annotations

from typing import Any

import grain

from tests.exactness.adapters import grain_loader

ABOUT = grain_loader.ABOUT._replace(
    title="Grain ElasticIterator (experimental)",
    follows="Grain, API reference of grain.experimental, ElasticIterator; the global batch stays",
    promise="the state of any shard restores all shards after changes in sharding; incomplete"
    " batches are dropped",
    promised=("same", "ranks"),
    drops_rest=True,
)
write = grain_loader.write


class Epochs(grain_loader.Epochs):
    def begin(self, epoch: int) -> Any:
        setting, place = self.setting, self.place
        options = grain.MultiprocessingOptions(num_workers=place.workers)
        elastic = grain.experimental.ElasticIterator(
            grain.MapDataset.range(setting.samples).shuffle(seed=setting.seed + epoch),
            setting.global_batch,
            grain.sharding.ShardOptions(place.rank, place.world_size),
            multiprocessing_options=options if place.workers else None,
        )
        return iter(elastic)


open = Epochs
