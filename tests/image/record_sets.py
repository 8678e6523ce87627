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


def write_records(path: Path, images: object, labels: object, ids: object) -> RecordFile:
    """A record file: `images` uint8 (N, H, W, 3), or a list of encoded bytes."""
    is_fixed = isinstance(images, np.ndarray)
    size, encoded_bytes = (images.shape[1:3], 0) if is_fixed else (None, sum(map(len, images)))
    with record_writer(path, len(labels), size, encoded_bytes) as writer:
        writer.append(images, labels, ids)
    return writer.file


def write_set(
    root: Path,
    lengths: list[int],
    folder: str = "train",
    classes: int = 3,
    layout: str = "fixed",
    **facts: object,
) -> RecordSet:
    """A set whose ids count up from file to file; labels are the id modulo `classes`."""
    split, files, start = folder.partition("_")[0], [], 0
    for number, length in enumerate(lengths):
        ids = np.arange(start, start := start + length)
        images = images_of(ids)
        content = (
            images
            if layout == "fixed"
            else [image.tobytes()[: 1 + i % 50] for i, image in zip(ids, images, strict=True)]
        )
        name = file_name(split, number, len(lengths))
        files.append(write_records(root / folder / name, content, ids % classes, ids))
    names, counts = (
        [f"class {number}" for number in range(classes)],
        np.bincount(np.arange(start) % classes),
    )
    digest, size = multiset_digest([np.arange(start)]), (4, 6) if layout == "fixed" else None
    records = RecordSet(
        root / folder,
        split,
        names,
        files,
        counts.tolist(),
        layout,
        size,
        ids_digest=digest,
        **facts,
    )
    records.write()
    return records
