"""Rows spilled to disk, parted by the leading bits of a 64-bit key: more rows than memory can be
sorted."""

from __future__ import annotations

import os
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
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC)
        self._end = 0
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
                self._write(message, self._placed(number, message.size, batch.schema))
            first += rows

    def _placed(self, part: int, size: int, schema: pa.Schema) -> int:
        """Take `size` bytes of the file for a batch of a part; where they begin."""
        with self._lock:
            self._schema = schema
            offset = self._end
            self._end += size
            self._places[part].append(_Place(offset, size))
        return offset

    def _write(self, message: pa.Buffer, offset: int) -> None:
        rest = memoryview(message)
        while rest:  # one call writes at most 2 GiB
            written = os.pwrite(self._descriptor, rest, offset)
            rest = rest[written:]
            offset += written

    def read(self, part: int) -> pa.Table | None:
        """All rows of one part, or None if there are none."""
        batches = []
        for place in self._places[part]:
            raw = pa.py_buffer(self._read(place))
            batches.append(pa.ipc.read_record_batch(raw, self._schema))
        if not batches:
            return None
        return pa.Table.from_batches(batches).combine_chunks()

    def _read(self, place: _Place) -> bytes:
        raw = os.pread(self._descriptor, place.size, place.offset)
        while len(raw) < place.size:  # one call reads at most 2 GiB
            missing = place.size - len(raw)
            more = os.pread(self._descriptor, missing, place.offset + len(raw))
            if not more:
                raise Damaged(self.path, "it ends early")
            raw += more
        return raw

    def close(self) -> None:
        """Remove the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        self.path.unlink(missing_ok=True)


def part_of(keys: np.ndarray, parts: int) -> np.ndarray:
    """uint8 part of every key: its leading bits, so that parts follow the order of the keys."""
    bits = parts.bit_length() - 1
    if not bits:
        return np.zeros(len(keys), np.uint8)
    return (keys >> np.uint64(64 - bits)).astype(np.uint8)
