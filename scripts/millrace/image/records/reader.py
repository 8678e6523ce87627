"""Contiguous slices of records, out of few open files per process; which files are refused, as they
are not what the index says."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

import numpy as np
import orjson

from millrace.common.errors import MillraceError, first_line, own_file
from millrace.common.loading.h5 import open_h5
from millrace.common.loading.open_files import OpenFiles
from millrace.common.machine.memory import keep_freed_memory
from millrace.image.records.record_file import Records, shape_of
from millrace.image.records.record_set import RecordSet


class RecordReader:
    """Gives records of a set; each process opens files of its own, however it was started.

        reader = RecordReader(records, max_open_files=4)
        images, labels, ids = reader.read(file=0, start=0, count=256)

    A slice of contiguous images is one positioned read, into `out` if it is given; bytes are not
    mapped, as a file that is cut meanwhile would be a crash. Chunked ones go through h5py.
    """

    def __init__(self, records: RecordSet, max_open_files: int = 4) -> None:
        self.records = records
        self._files: OpenFiles[_File] = OpenFiles(partial(_File, records), max_open_files)

    def read(self, file: int, start: int, count: int, out: np.ndarray | None = None) -> Records:
        """Records [start, start + count) of a file, less beyond its end; `out` is uint8 (>= count,
        H, W, 3).

        Raises MillraceError for a file that is not what the index says, or cannot be read.
        """
        entry = self.records.files[file]
        stop = min(start + count, entry.records)
        if not 0 <= start <= stop:
            raise IndexError(f"records {start} to {start + count} of {self.records.path(file)}")
        try:
            with self._files.lock:
                opened = self._files.get(file)
                images = opened.images(start, stop, out)
        except OSError as error:
            problem = f"cannot be read ({first_line(error)})"
            where = str(self.records.path(file))
            raise MillraceError(problem, where, "If it is damaged, make the set again") from None
        return Records(images, opened.labels[start:stop], opened.ids[start:stop])

    def labels(self, file: int) -> np.ndarray:
        """All labels of a file."""
        with self._files.lock:
            return self._files.get(file).labels

    def ids(self, file: int) -> np.ndarray:
        """All ids of a file."""
        with self._files.lock:
            return self._files.get(file).ids

    def close(self) -> None:
        """Close all files; they open again when they are read."""
        self._files.close()


class _File:
    """An open record file: labels and ids in memory, images by positioned reads or by h5py."""

    def __init__(self, records: RecordSet, number: int) -> None:
        self.path = os.fspath(records.path(number))
        keep_freed_memory()
        if not os.path.exists(self.path):
            raise MillraceError("is missing", self.path, "Bring it, or make the set again")
        with own_file(self.path), open_h5(self.path) as h5:
            self.shape = shape_of(h5, self.path)
            self._check_shape(records, number)
            labels = h5["labels"][()]
            self.labels = labels.astype(np.int64)
            self._check_labels(len(records.classes))
            if digest := records.files[number].digest:  # produced epochs have none
                self._check_digest(h5["facts"][()], digest)
            # Ids of other programs may be anything.
            if records.has_index:
                self.ids = h5["ids"][()]
            else:
                self.ids = np.arange(*records.starts[number : number + 2])
        # h5py lets one thread of a process read at a time, so it reads only what is in pieces.
        self._source: Any = None
        if self.shape.offset is None:
            self._source = open_h5(self.path)
        else:
            self._source = open(self.path, "rb", buffering=0)  # noqa: SIM115
        self.close = self._source.close

    def _check_shape(self, records: RecordSet, number: int) -> None:
        entry = records.files[number]
        shape = self.shape
        stated = (records.size, entry.records, entry.bytes)
        found = (shape.size, shape.records, os.path.getsize(self.path))
        if stated == found:
            return
        problem = (
            f"the index says {entry.records} records of {records.size} pixels"
            f" in {entry.bytes} bytes, the file has {shape.records} of {shape.size}"
        )
        raise MillraceError(problem, self.path, "Make the set again")

    def _check_digest(self, facts: np.ndarray, digest: str) -> None:
        if orjson.loads(facts.tobytes()).get("digest", digest) != digest:
            problem = "is not the file that the index says: its content is another"
            raise MillraceError(problem, self.path, "Open the set again, or make it again")

    def _check_labels(self, classes: int) -> None:
        if not len(self.labels):
            return
        low = self.labels.min()
        high = self.labels.max()
        if low < 0 or high >= classes:
            problem = f"has labels from {low} to {high}, of {classes} classes"
            raise MillraceError(problem, self.path, "Convert it again")

    def images(self, start: int, stop: int, out: np.ndarray | None) -> np.ndarray:
        """Images [start, stop), in `out` if it is given."""
        count = stop - start
        if out is None:
            images = np.empty((count, *self.shape.size, 3), np.uint8)
        else:
            images = out[:count]
        if not count:
            return images
        if self.shape.offset is None:
            self._source["images"].read_direct(images, np.s_[start:stop])
        else:
            self._fill(images, self.shape.offset + start * images[0].nbytes)
        return images

    def _fill(self, array: np.ndarray, place: int) -> None:
        """Fill `array` with the bytes that begin at `place` in the file."""
        view = array.data.cast("B")
        while len(view):
            count = os.preadv(self._source.fileno(), [view], place)
            if not count:
                raise MillraceError("ends before its records", self.path, "Make the set again")
            view = view[count:]
            place += count
