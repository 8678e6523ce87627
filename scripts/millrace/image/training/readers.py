"""Ways of reading images, measured: an image folder, record files whole or one record at a time."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import DataLoader, Dataset

from millrace.image.records.folder import read_tree
from millrace.image.records.pixels import read_image
from millrace.image.records.reader import RecordReader
from millrace.image.records.record_set import RecordSet

CHUNK = 64  # images of a batch; on_group reads so many at once, file after file
_SEED = 42  # of random orders


class FolderReader(Dataset):
    """ImageFolder's way: each image of a folder is opened and decoded, in random order."""

    def __init__(self, root: Path, images: int) -> None:
        rows = read_tree(root).rows["train"]
        order = np.random.default_rng(_SEED).permutation(len(rows))
        chosen = order[: images or None]
        self.paths = [root / "train" / rows[number][0] for number in chosen]

    def __len__(self) -> int:
        return math.ceil(len(self.paths) / CHUNK)

    def __getitem__(self, chunk: int) -> int:
        start = chunk * CHUNK
        paths = self.paths[start : start + CHUNK]
        for path in paths:
            image, _ = read_image(path.read_bytes())
            np.asarray(image)  # Pillow decodes when its pixels are asked for
        return len(paths)


class H5Reader(Dataset):
    """Record files: `on_group` in order, whole; else (on_demand) one record at a time in random
    order."""

    def __init__(self, records: RecordSet, on_group: bool, images: int) -> None:
        self.reader = RecordReader(records, max_open_files=256)
        if on_group:
            chunks = [[place] for place in _chunks(records)]
            self.chunks = chunks[: math.ceil(images / CHUNK) or None]
        else:
            order = np.random.default_rng(_SEED).permutation(len(records))
            chosen = order[: images or None].tolist()
            singles = [(*records.locate(number), 1) for number in chosen]
            starts = range(0, len(singles), CHUNK)
            self.chunks = [singles[start : start + CHUNK] for start in starts]

    def __len__(self) -> int:
        return len(self.chunks)

    def __getitem__(self, chunk: int) -> int:
        return sum(len(self.reader.read(*place).images) for place in self.chunks[chunk])


def _chunks(records: RecordSet) -> Iterator[tuple[int, int, int]]:
    """(file, first record, records) of all files."""
    for file, length in enumerate(records.lengths.tolist()):
        for start in range(0, length, CHUNK):
            yield file, start, CHUNK


def measure(name: str, reader: Any, workers: int, repeats: int = 3) -> dict[str, Any]:
    """The median pass of `repeats`."""
    passes = []
    for _ in range(repeats):
        began = time.perf_counter()
        images = sum(DataLoader(reader, batch_size=None, num_workers=workers))
        passes.append((time.perf_counter() - began, images))

    seconds, images = sorted(passes)[len(passes) // 2]
    return {
        "reader": name,
        "workers": workers,
        "images": images,
        "images_per_second": images / seconds,
    }


def readers(
    folder: Path | None, sets: list[Path], only: str, images: int
) -> Iterator[tuple[str, Any]]:
    """The readers with their names: of the image folder, and two of each set of records."""
    if folder and only != "h5":
        yield "image folder", FolderReader(folder, images)
    if only == "image_folder":
        return
    for root in sets:
        records = RecordSet.open(root)
        yield "H5, on_group", H5Reader(records, True, images)
        yield "H5, on_demand", H5Reader(records, False, images)
