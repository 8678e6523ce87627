"""MosaicML Streaming: a StreamingDataset in a StreamingDataLoader, each rank a process."""

from __future__ import annotations

import importlib.util
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import transformers.feature_extraction_utils  # noqa: F401 - before there is a stand-in
from torch.utils.data import Dataset

from tests.exactness.adapters import About, Place, Setting, Stateful

# With the library its readers of pictures are imported, which inherit from a class of torchvision.
_STAND_INS = ("torchvision", "torchvision.datasets", "torchvision.transforms.functional")
if importlib.util.find_spec("torchvision") is None:
    sys.modules.update({name: types.ModuleType(name) for name in _STAND_INS})
    sys.modules["torchvision.datasets"].VisionDataset = Dataset
    sys.modules["torchvision.transforms.functional"].to_tensor = None

from streaming import MDSWriter, StreamingDataLoader, StreamingDataset  # noqa: E402

if sys.modules["torchvision"].__spec__ is None:
    for name in _STAND_INS:
        del sys.modules[name]

ABOUT = About(
    title="MosaicML Streaming",
    packages=("mosaicml-streaming", "torch"),
    follows="Streaming, Fast Resumption; Elastic Determinism, Requirements (the global batch"
    " stays)",
    promise="mid-epoch resumption, elastically deterministic: with other workers and, at the same"
    " global batch size, other ranks",
    promised=("same", "workers", "ranks"),
    processes=True,
)


def write(folder: Path, samples: int) -> None:
    with MDSWriter(out=str(folder / "mds"), columns={"id": "int"}, size_limit=300) as writer:
        for sample in range(samples):
            writer.write({"id": sample})


class StreamBatches(Stateful):
    def __init__(self, setting: Setting, place: Place) -> None:
        batch_size = setting.global_batch // place.world_size
        dataset = StreamingDataset(
            local=str(setting.folder / "mds"),
            shuffle=True,
            shuffle_seed=setting.seed,
            batch_size=batch_size,
            num_canonical_nodes=1,
        )
        self.loader = StreamingDataLoader(dataset, batch_size=batch_size, num_workers=place.workers)

    def batches(self, epoch: int) -> Iterator[list[int]]:
        """The data set counts the epochs by itself."""
        for batch in self.loader:
            yield batch["id"].tolist()

    def close(self) -> None: ...


open = StreamBatches
