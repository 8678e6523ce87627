"""One record file (HDF5): images of a fixed size, with labels and ids, written whole; which layouts
of other programs are read.

Written are `images` uint8 (N, H, W, 3), contiguous, `labels` and `ids` (N), and `facts`, JSON. Read
are also the original's `images`, in any chunking.
"""

from __future__ import annotations

import contextlib
import math
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import orjson

from millrace.common import atomic
from millrace.common.errors import MillraceError


@dataclass(frozen=True)
class RecordFile:
    """A record file as its set's index lists it. `digest` is the CRC-32 of images, labels and
    ids."""

    name: str
    records: int
    bytes: int
    digest: str = ""


class Records(NamedTuple):
    """Records that follow one another in a file: images uint8 (n, H, W, 3), RGB; labels and ids
    int64 (n,)."""

    images: np.ndarray
    labels: np.ndarray
    ids: np.ndarray


class Shape(NamedTuple):
    """What lies in a record file: number of records, (H, W) of the images, and where in the file
    they begin, if they are contiguous."""

    records: int
    size: tuple[int, int]
    offset: int | None


class RecordWriter:
    """What `record_writer` gives: `facts` may be set until its end; after it `file` is the index
    entry."""

    def __init__(self, raw: BinaryIO, size: tuple[int, int], with_digest: bool) -> None:
        self._raw = raw
        self.size = size
        self._with_digest = with_digest
        self.file: RecordFile  # set when it is whole
        self.facts = dict[str, Any]()
        self.crc = 0
        self.labels = list[int]()
        self.ids = list[int]()

    def append(self, images: Iterable[Any], labels: Iterable[int], ids: Iterable[int]) -> None:
        """Add records; each image uint8 (H, W, 3), written from where it lies."""
        for image in images:
            if (image.dtype, image.shape) != (np.uint8, (*self.size, 3)):
                problem = f"an image is {image.dtype} {image.shape}, not uint8 ({self.size}, 3)"
                raise ValueError(problem)
            if self._with_digest:
                self.crc = zlib.crc32(image, self.crc)
            self._raw.write(image)
        self.labels.extend(labels)
        self.ids.extend(ids)


@contextlib.contextmanager
def record_writer(
    path: str | os.PathLike, records: int, size: tuple[int, int], is_scratch: bool = False
) -> Iterator[RecordWriter]:
    """Write one record file piece by piece; it appears at its place when it is whole.

        with record_writer(path, records=1000, size=(256, 256)) as writer:
            writer.append(images, labels, ids)
        index_entry = writer.file

    `records` says how many come. If fewer come (some images turn out to be damaged), `facts` can
    be read, but no records. `is_scratch`: in a folder that is renamed when it is whole, and can be
    made again: no fsync, no digest.
    """
    import h5py

    path = Path(path)
    # Without fill values, which would be written first; the place in the file is known at once.
    early = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    early.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    options = {
        "track_times": False,
        "fill_time": "never",
        "dcpl": early,
    }
    with (
        contextlib.nullcontext(path) if is_scratch else atomic.replacing(path) as partial,
        h5py.File(partial, "w") as h5,
        open(partial, "r+b", buffering=1 << 16) as raw,
    ):
        images = h5.create_dataset("images", (records, *size, 3), np.uint8, **options)
        # Images are written past h5py, which lets one thread of a process write at a time.
        raw.seek(images.id.get_offset() or 0)
        writer = RecordWriter(raw, size, not is_scratch)
        yield writer

        columns: dict[str, Any] = {
            "labels": np.asarray(writer.labels, np.int64),
            "ids": np.asarray(writer.ids, np.int64),
        }
        for values in columns.values():
            writer.crc = zlib.crc32(values, writer.crc)
        digest = "" if is_scratch else f"{writer.crc:08x}"
        writer.facts["digest"] = digest
        facts = orjson.dumps(writer.facts, option=orjson.OPT_SORT_KEYS)
        columns["facts"] = np.frombuffer(facts, np.uint8)
        for name, values in columns.items():
            h5.create_dataset(name, data=values, track_times=False)
    writer.file = RecordFile(path.name, len(writer.ids), path.stat().st_size, digest)


def read_facts(path: str | os.PathLike) -> dict[str, Any]:
    """What was noted in the file when it was written, with its `digest`; {} if it is missing or not
    ours."""
    from millrace.common.loading.h5 import UNREADABLE, open_h5

    try:
        with open_h5(os.fspath(path)) as h5:
            return orjson.loads(h5["facts"][()].tobytes())
    except UNREADABLE:
        return {}


def shape_of(h5: Any, path: str | os.PathLike) -> Shape:
    """What lies in an open file. Raises MillraceError for a layout that is not read, with the
    remedy."""
    import h5py

    # Links lead into other files, or nowhere.
    names = [name for name in h5 if isinstance(h5.get(name, getlink=True), h5py.HardLink)]
    datasets = {name: h5[name] for name in names if isinstance(h5[name], h5py.Dataset)}
    problem = _problem(datasets, names)
    if problem:
        remedy = "Convert the images again: python -m millrace.image.create_records"
        raise MillraceError(problem, os.fspath(path), remedy)
    images = datasets["images"]
    # No offset if it is chunked.
    return Shape(len(images), images.shape[1:3], images.id.get_offset())


def _problem(datasets: Mapping[str, Any], names: list[str]) -> str:
    """Why a file of these names is none of the original's; "" if it is one."""
    if not {"images", "labels"} <= datasets.keys():
        held = ", ".join(names) or "nothing"
        return f"`images` and `labels` are needed, the file holds {held} (links do not count)"
    images = datasets["images"]
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[3] != 3:
        return f"`images` is {images.dtype} {images.shape}, not uint8 (N, H, W, 3), RGB"
    labels = datasets["labels"]
    if labels.shape != images.shape[:1] or labels.dtype.kind not in "iu":
        return f"`labels` is {labels.dtype} {labels.shape}, of {len(images)} images"
    # The rest would be read as black images, or as the first class.
    for name in ("images", "labels"):
        dataset = datasets[name]
        if dataset.external or not _is_written(dataset):
            return f"`{name}` was not written to its end, or lies in other files"
    return ""


def _is_written(dataset: Any) -> bool:
    """Whether the file has room for all values: it is made when they are written."""
    if not dataset.chunks:
        return dataset.id.get_storage_size() > 0 or not dataset.size
    sides = zip(dataset.shape, dataset.chunks, strict=True)
    chunks = math.prod(-(-side // chunk) for side, chunk in sides)
    return dataset.id.get_num_chunks() == chunks


def multiset_digest(ids: Iterable[np.ndarray]) -> str:
    """Digest of all these ids with their multiplicities, in any order and any blocks."""
    from millrace.common import hashing

    count = 0
    sums = np.zeros(2, np.uint64)
    for block in ids:
        mixed = hashing.mix(np.asarray(block).astype(np.uint64))
        count += len(block)
        twice = hashing.mix(mixed)
        sums += np.array([mixed.sum(dtype=np.uint64), twice.sum(dtype=np.uint64)], np.uint64)
    return f"{count}-{sums[0]:016x}{sums[1]:016x}"
