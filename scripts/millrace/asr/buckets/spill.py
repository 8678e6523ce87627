"""Rows spilled to disk, parted by the leading bits of a 64-bit key: more rows than memory can be
sorted."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import numpy as np
import pyarrow as pa

ROWS_PER_PART = 1 << 18


def parts_for(rows: int) -> int:
    """A power of two of parts, so that one part holds at most about 300,000 rows (up to 256
    parts)."""
    return 1 << max(0, min(8, (max(rows, 1) - 1).bit_length() - (ROWS_PER_PART.bit_length() - 1)))


class RowSpill:
    """Pieces of rows in one file, each as one Arrow batch per part; read by position, so that RSS
    stays flat.

    `add` may be called from several threads. Reading a part gives its rows of all pieces, in no
    particular order of pieces. One file and one descriptor, however many pieces: 75 million rows
    would make 600 files.
    """

    def __init__(self, path: Path, parts: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path, self.parts = path, parts
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC)
        self._end = 0
        # Offset and size of each part's batches.
        self._places: list[list[tuple[int, int]]] = [[] for _ in range(parts)]
        self._schema: pa.Schema | None = None
        self._lock = threading.Lock()

    def add(self, table: pa.Table, keys: np.ndarray) -> None:
        """Write one piece; `keys` (uint64, one per row) decide the part."""
        if not len(table):
            return
        part = part_of(keys, self.parts)
        order = np.argsort(part, kind="stable")
        batch = table.take(pa.array(order)).combine_chunks().to_batches()[0]
        ends = np.cumsum(np.bincount(part, minlength=self.parts)).tolist()
        spans = ((number, *span) for number, span in enumerate(zip([0, *ends], ends, strict=False)))
        batches = [(number, batch.slice(a, b - a).serialize()) for number, a, b in spans if b > a]
        with self._lock:
            self._schema = self._schema or batch.schema
            offset = self._end
            for number, message in batches:
                self._places[number].append((self._end, message.size))
                self._end += message.size
        for _, message in batches:
            rest = memoryview(message)
            while rest:  # one call writes at most 2 GiB
                written = os.pwrite(self._descriptor, rest, offset)
                rest, offset = rest[written:], offset + written

    def read(self, part: int) -> pa.Table | None:
        """All rows of one part, or None if there are none."""
        raw = (pa.py_buffer(self._pread(size, offset)) for offset, size in self._places[part])
        batches = [pa.ipc.read_record_batch(one, self._schema) for one in raw]
        return pa.Table.from_batches(batches).combine_chunks() if batches else None

    def _pread(self, size: int, offset: int) -> bytes:
        raw = os.pread(self._descriptor, size, offset)
        while len(raw) < size:  # one call reads at most 2 GiB
            raw += os.pread(self._descriptor, size - len(raw), offset + len(raw))
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
    return (
        (keys >> np.uint64(64 - bits)).astype(np.uint8)
        if bits
        else np.zeros(len(keys), dtype=np.uint8)
    )
