"""LitData: a StreamingDataset in a StreamingDataLoader."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from litdata import StreamingDataLoader, StreamingDataset
from litdata.streaming import Cache

from tests.exactness.adapters import About, Place, Setting, Stateful

ABOUT = About(
    title="LitData StreamingDataLoader",
    packages=("litdata", "torch"),
    follows="LitData, README, Pause, resume data streaming (the global batch stays) and Notes on"
    " drop_last",
    promise="with the same seed and shuffle; workers and world size may change: never duplicates"
    " remaining ids",
    promised=("same", "workers", "ranks"),
    processes=True,
    drops_rest=True,  # with drop_last, which its README asks for under DDP
)


def write(folder: Path, samples: int) -> None:
    cache = Cache(str(folder / "chunks"), chunk_size=4)
    for sample in range(samples):
        cache[sample] = sample
    cache.done()
    cache.merge()


class StreamBatches(Stateful):
    def __init__(self, setting: Setting, place: Place) -> None:
        dataset = StreamingDataset(
            str(setting.folder / "chunks"), shuffle=True, drop_last=True, seed=setting.seed
        )
        batch_size = setting.global_batch // place.world_size
        self.loader = StreamingDataLoader(dataset, batch_size=batch_size, num_workers=place.workers)

    def batches(self, epoch: int) -> Iterator[list[int]]:
        """The loader counts the epochs by itself."""
        for batch in self.loader:
            yield batch.tolist()


open = StreamBatches
