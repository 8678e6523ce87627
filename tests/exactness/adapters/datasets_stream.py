"""datasets: an IterableDataset that is split by node, in torchdata's StatefulDataLoader."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from datasets import Dataset
from datasets.distributed import split_dataset_by_node
from torchdata.stateful_dataloader import StatefulDataLoader

from tests.exactness.adapters import About, Place, Setting, Stateful

ABOUT = About(
    title="datasets IterableDataset",
    packages=("datasets", "torchdata", "torch"),
    follows="datasets, Stream, Save a dataset checkpoint and resume iteration; Use with PyTorch,"
    " Distributed",
    promise="resuming returns exactly where the checkpoint was saved",
    promised=("same",),
)
SHARDS = 24


def write(folder: Path, samples: int) -> None:
    Dataset.from_dict({"id": range(samples)}).to_parquet(str(folder / "rows.parquet"))


class StreamBatches(Stateful):
    def __init__(self, setting: Setting, place: Place, buffer_size: int = 0) -> None:
        rows = Dataset.from_parquet(
            str(setting.folder / "rows.parquet"), cache_dir=str(setting.folder)
        )
        stream = rows.to_iterable_dataset(num_shards=min(SHARDS, setting.samples))
        if buffer_size:
            stream = stream.shuffle(seed=setting.seed, buffer_size=buffer_size)
        self.stream = split_dataset_by_node(stream, place.rank, place.world_size)
        self.loader = StatefulDataLoader(self.stream, setting.batch_size, num_workers=place.workers)

    def batches(self, epoch: int) -> Iterator[list[int]]:
        self.stream.set_epoch(epoch)
        for batch in self.loader:
            yield batch["id"].tolist()


open = StreamBatches
