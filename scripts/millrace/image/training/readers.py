"""Ways of reading images, measured: an image folder, record files whole or one record at a time."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import DataLoader, Dataset

from millrace.common.leaks import leakage
from millrace.image.records.conversion import of_tree
from millrace.image.records.convert import convert, finish
from millrace.image.records.folder import read_tree
from millrace.image.records.options import RecordOptions
from millrace.image.records.pixels import read_image
from millrace.image.records.reader import RecordReader
from millrace.image.records.record_file import FIXED
from millrace.image.records.record_set import RecordSet

CHUNK = 64  # images of a batch; on_group reads so many at once, file after file


class FolderReader(Dataset):
    """ImageFolder's way: each image of a folder is opened and decoded, in random order."""

    def __init__(self, root: Path, images: int, seed: int) -> None:
        rows = read_tree(root, allow_empty=True).rows["train"]
        order = np.random.default_rng(seed).permutation(len(rows))
        chosen = order[: images or None]
        self.paths = [root / "train" / rows[number][0] for number in chosen]
        self.bytes_per_image = sum(map(os.path.getsize, self.paths)) / len(self.paths)

    def __len__(self) -> int:
        return math.ceil(len(self.paths) / CHUNK)

    def __getitem__(self, chunk: int) -> int:
        start = chunk * CHUNK
        paths = self.paths[start : start + CHUNK]
        for path in paths:
            _decode(path.read_bytes())
        return len(paths)


class H5Reader(Dataset):
    """Record files: `on_group` in order, whole; else (on_demand) one record at a time in random
    order."""

    def __init__(self, records: RecordSet, on_group: bool, images: int, seed: int) -> None:
        self.reader = RecordReader(records, max_open_files=256)
        if on_group:
            chunks = [[place] for place in _chunks(records)]
            self.chunks = chunks[: math.ceil(images / CHUNK) or None]
        else:
            order = np.random.default_rng(seed).permutation(len(records))
            chosen = order[: images or None].tolist()
            singles = [(*records.locate(number), 1) for number in chosen]
            starts = range(0, len(singles), CHUNK)
            self.chunks = [singles[start : start + CHUNK] for start in starts]
        self.paths = [records.path(file) for file in range(len(records.files))]
        self.bytes_per_image = sum(file.bytes for file in records.files) / len(records)

    def __len__(self) -> int:
        return len(self.chunks)

    def __getitem__(self, chunk: int) -> int:
        is_encoded = self.reader.records.layout != FIXED
        count = 0
        for place in self.chunks[chunk]:
            images = self.reader.read(*place).images
            count += len(images)
            for image in images if is_encoded else ():
                _decode(image)
        return count


def _chunks(records: RecordSet) -> Iterator[tuple[int, int, int]]:
    """(file, first record, records) of all files."""
    for file, length in enumerate(records.lengths.tolist()):
        for start in range(0, length, CHUNK):
            yield file, start, CHUNK


def _decode(content: Any) -> None:
    """Decode an image: Pillow does so when its pixels are asked for."""
    image, _ = read_image(content)
    np.asarray(image)


def measure(
    name: str, reader: Any, workers: int, is_cold: bool, repeats: int = 3
) -> dict[str, Any]:
    """The median pass of `repeats`; before a cold one the files leave the page cache.

    Images a second are by the clock, seconds of CPU for 1,000 images those of all processes.
    """
    passes = []
    for _ in range(1 if is_cold else repeats):
        if is_cold:
            _forget(reader.paths)
        cpu_before = sum(os.times()[:4])
        began = time.perf_counter()
        images = sum(DataLoader(reader, batch_size=None, num_workers=workers))
        seconds = time.perf_counter() - began
        cpu = sum(os.times()[:4]) - cpu_before
        passes.append((seconds, cpu, images))

    seconds, cpu, images = sorted(passes)[len(passes) // 2]
    return {
        "reader": name,
        "state": "cold" if is_cold else "warm",
        "workers": workers,
        "images": images,
        "images_per_second": images / seconds,
        "cpu_seconds_per_1000": 1000 * cpu / images,
        "disk_bytes_per_image": reader.bytes_per_image,
    }


def _forget(paths: Iterable[Path]) -> None:
    """Let files leave the page cache."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        os.fdatasync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def readers(
    folder: Path | None, sets: list[Path], only: str, images: int, seed: int, scratch: Path
) -> Iterator[tuple[str, Any]]:
    """The readers with their names: of the image folder, two of each set of records, and two of
    encoded records, into which images of the folder are converted in `scratch`."""
    if folder and only != "h5":
        yield "image folder", FolderReader(folder, images, seed)
    if only == "image_folder":
        return
    records = [RecordSet.open(root) for root in sets]
    if folder and all(each.layout == FIXED for each in records):
        records.append(encoded_sample(folder, images, seed, scratch))
    for each in records:
        yield f"H5 {each.layout}, on_group", H5Reader(each, True, images, seed)
        yield f"H5 {each.layout}, on_demand", H5Reader(each, False, images, seed)


def encoded_sample(folder: Path, images: int, seed: int, scratch: Path) -> RecordSet:
    """The bytes of some images of train as they are, in record files as create_records makes
    them."""
    tree = read_tree(folder, allow_empty=True)
    options = RecordOptions(layout="encoded", records_per_file=1000, seed=seed)
    conversion = of_tree(tree, "train", options, scratch, images)
    convert(conversion, threads=1)
    finish(conversion, None, leakage.KEEP, max_error_fraction=1.0, threads=1)
    return RecordSet.open(scratch)
