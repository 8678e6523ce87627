"""Rows of a bucket build on disk, as memory cannot sort all of them: in how many parts, by the
leading bits of a 64-bit key."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from millrace.common.errors import Damaged

ROWS_PER_PART = 1 << 18
_MOST_PARTS = 256


def parts_for(rows: int) -> int:
    """A power of two of parts, so that one part holds at most about 300,000 rows (up to 256
    parts)."""
    parts = 1
    while parts < _MOST_PARTS and parts * ROWS_PER_PART < rows:
        parts *= 2
    return parts


class _Place(NamedTuple):
    """Where a batch lies in the file, in bytes."""

    offset: int
    size: int


class RowSpill:
    """Pieces of rows in one file, each as one Arrow batch per part; read by position, so that RSS
    stays flat.

    `add` may be called from several threads. Reading a part gives its rows of all pieces, in no
    particular order of pieces. One file and one descriptor, however many pieces: 75 million rows
    would make 600 files.
    """

    def __init__(self, path: Path, parts: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self.parts = parts
        self._file = open(path, "w+b")  # noqa: SIM115 - `close` closes it
        self._places: list[list[_Place]] = [[] for _ in range(parts)]
        self._schema: pa.Schema | None = None
        self._lock = threading.Lock()

    def add(self, table: pa.Table, keys: np.ndarray) -> None:
        """Write one piece; `keys` (uint64, one per row) decide the part."""
        if not len(table):
            return
        part = part_of(keys, self.parts)
        order = np.argsort(part, kind="stable")
        batch = table.take(pa.array(order)).combine_chunks().to_batches()[0]
        first = 0
        for number, rows in enumerate(np.bincount(part).tolist()):
            if rows:
                message = batch.slice(first, rows).serialize()
                with self._lock:
                    self._schema = batch.schema
                    self._places[number].append(_Place(self._file.tell(), message.size))
                    self._file.write(message)
            first += rows

    def read(self, part: int) -> pa.Table | None:
        """All rows of one part, or None if there are none; after the last `add`."""
        batches = []
        for place in self._places[part]:
            self._file.seek(place.offset)
            raw = self._file.read(place.size)
            if len(raw) < place.size:
                raise Damaged(self.path, "it ends early")
            batches.append(pa.ipc.read_record_batch(pa.py_buffer(raw), self._schema))
        if not batches:
            return None
        return pa.Table.from_batches(batches).combine_chunks()

    def close(self) -> None:
        """Remove the file."""
        self._file.close()
        self.path.unlink(missing_ok=True)


def part_of(keys: np.ndarray, parts: int) -> np.ndarray:
    """uint8 part of every key: its leading bits, so that parts follow the order of the keys."""
    bits = parts.bit_length() - 1
    if not bits:
        return np.zeros(len(keys), np.uint8)
    return (keys >> np.uint64(64 - bits)).astype(np.uint8)
