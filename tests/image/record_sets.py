"""Small sets of record files for tests."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from millrace.image.records.record_file import RecordFile, multiset_digest, record_writer
from millrace.image.records.record_set import RecordSet, file_name


def images_of(ids: np.ndarray, size: tuple[int, int] = (4, 6)) -> np.ndarray:
    """Images whose every pixel is the id: red its low byte, green the next, blue 7."""
    images = np.full((len(ids), *size, 3), 7, np.uint8)
    images[..., 0], images[..., 1] = (ids % 256)[:, None, None], (ids // 256)[:, None, None]
    return images


def write_records(path: Path, images: np.ndarray, labels: object, ids: object) -> RecordFile:
    """A record file of images uint8 (N, H, W, 3)."""
    with record_writer(path, len(labels), images.shape[1:3]) as writer:
        writer.append(images, labels, ids)
    return writer.file


def write_set(
    root: Path, lengths: list[int], folder: str = "train", size: tuple[int, int] = (4, 6)
) -> RecordSet:
    """A set of three classes whose ids count up from file to file; labels are the id modulo 3."""
    split = folder.partition("_")[0]
    files = []
    start = 0
    for number, length in enumerate(lengths):
        ids = np.arange(start, start + length)
        start += length
        path = root / folder / file_name(split, number, len(lengths))
        files.append(write_records(path, images_of(ids, size), ids % 3, ids))
    names = [f"class {number}" for number in range(3)]
    counts = np.bincount(np.arange(start) % 3).tolist()
    digest = multiset_digest([np.arange(start)])
    records = RecordSet(root / folder, split, names, files, counts, size, ids_digest=digest)
    records.write()
    return records
