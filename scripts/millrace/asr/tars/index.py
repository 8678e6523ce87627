"""The index of a partition of tars as one parquet file: a row per member, and a record of every
tar."""

from __future__ import annotations

import dataclasses
import json
import os
import zlib
from collections.abc import Iterable

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from millrace.asr.tars.header import SYMLINK
from millrace.asr.tars.paths import REBUILD, REMAKE
from millrace.asr.tars.scan import FAILED, TarScan
from millrace.common.atomic import replacing
from millrace.common.errors import MillraceError, own_file

ROW_GROUP = 1 << 16
"""Members per row group, at least: tars are never split over two calls, small ones share a
group."""

_KEY = b"millrace.tars"
_CHECKSUM = b"millrace.tars.crc32"  # of the value of _KEY: the pages have their own
_SCHEMA = pa.schema(
    [
        ("tar", pa.int32()),  # row of the table of tars
        ("name", pa.binary()),  # raw bytes: a name need not be UTF-8
        ("offset", pa.int64()),
        ("size", pa.int64()),
        ("kind", pa.uint8()),
        ("recovered", pa.bool_()),
    ]
)
# What of a scan its record has as it is.
_OF_A_SCAN = ("path", "size", "mtime_ns", "digest", "last_header", "status", "reason", "duplicates")
_ENCODINGS = {
    "tar": "DELTA_BINARY_PACKED",
    "name": "DELTA_BYTE_ARRAY",
    "offset": "DELTA_BINARY_PACKED",
    "size": "DELTA_BINARY_PACKED",
}


@dataclasses.dataclass(frozen=True)
class TarRecord:
    """One tar when scanned: `size` in bytes, `digest` of its content (see stamp)."""

    path: str
    size: int
    mtime_ns: int
    digest: str
    last_header: int
    status: str
    reason: str
    members: int
    readable: int
    recovered: int
    duplicates: int
    first_row: int

    @property
    def failed(self) -> bool:
        """Nothing of it could be indexed."""
        return self.status in FAILED


def write_index(path: str | os.PathLike, scans: Iterable[TarScan]) -> list[TarRecord]:
    """Write the index of all scans to `path`, in their order; the same scans give the same
    bytes."""
    records = []
    waiting = []
    rows = 0
    first_row = 0
    with (
        replacing(path) as partial,
        pq.ParquetWriter(
            partial,
            _SCHEMA,
            compression="zstd",
            compression_level=9,
            use_dictionary=["kind"],
            column_encoding=_ENCODINGS,
            write_statistics=False,
            write_page_checksum=True,
            store_schema=False,
        ) as writer,
    ):
        for number, scan in enumerate(scans):
            count = len(scan.names)
            columns = (scan.names, scan.offsets, scan.sizes, scan.kinds, scan.recovered)
            waiting.append(pa.table([np.full(count, number, np.int32), *columns], schema=_SCHEMA))
            records.append(_record(scan, first_row))
            rows += count
            first_row += count
            if rows >= ROW_GROUP:
                writer.write_table(pa.concat_tables(waiting).combine_chunks(), row_group_size=rows)
                waiting = []
                rows = 0
        if rows:
            writer.write_table(pa.concat_tables(waiting).combine_chunks(), row_group_size=rows)
        # ASCII only: a path that is not UTF-8 is kept as surrogates.
        table = json.dumps([dataclasses.asdict(record) for record in records], sort_keys=True)
        metadata = {_KEY.decode(): table, _CHECKSUM.decode(): _checksum(table.encode())}
        writer.add_key_value_metadata(metadata)
    return records


class TarIndex:
    """The index of one partition. Opening reads only the footer; members are read tar by tar."""

    def __init__(self, file: pq.ParquetFile, tars: dict[str, TarRecord], path: str) -> None:
        self._file = file
        self.tars = tars
        self.path = path
        counts = [
            file.metadata.row_group(group).num_rows for group in range(file.metadata.num_row_groups)
        ]
        self._ends = np.cumsum(counts, dtype=np.int64)
        self._cached: tuple[tuple[int, int], pa.Table] | None = None

    @classmethod
    def open(cls, path: str | os.PathLike) -> TarIndex:
        """Open the index at `path`. Raises MillraceError if there is none, or it is no index."""
        try:
            file = pq.ParquetFile(path, page_checksum_verification=True)
            metadata = file.metadata.metadata
            table = metadata[_KEY]
            checksum = metadata.get(_CHECKSUM)  # indices of 0.4 have none
            if checksum is not None and checksum.decode() != _checksum(table):
                raise ValueError("its checksum differs")
            tars = [TarRecord(**fields) for fields in json.loads(table)]
        except FileNotFoundError:
            raise MillraceError("no tar index there", os.fspath(path), REBUILD) from None
        except (OSError, pa.ArrowException, KeyError, TypeError, ValueError) as error:
            raise MillraceError(f"not a tar index ({error})", os.fspath(path), REMAKE) from None
        return cls(file, {tar.path: tar for tar in tars}, os.fspath(path))

    def members(self, tar_path: str) -> pa.Table:
        """All members of a tar of `tars` in its order; none if its record says that it failed.

        name (raw bytes without a `./` prefix), int64 offset and size in bytes, -1 and 0 if there is
        nothing to read; kind (uint8, see header) says why; recovered (bool): it lies after damage.
        """
        record = self.tars[tar_path]
        low = record.first_row
        high = record.first_row + record.members
        if not record.members:
            return _SCHEMA.empty_table().drop_columns(["tar"])
        first, last = (int(np.searchsorted(self._ends, row, "right")) for row in (low, high - 1))
        start = int(self._ends[first - 1]) if first else 0
        with own_file(self.path):
            # Small tars share a row group: the last one read stays for the next tar.
            if self._cached is None or self._cached[0] != (first, last):
                groups = self._file.read_row_groups(list(range(first, last + 1)))
                self._cached = ((first, last), groups)
            return self._cached[1].slice(low - start, high - low).select(_SCHEMA.names[1:])


def known_index(path: str | os.PathLike) -> TarIndex | None:
    """The index at `path`; None if there is none that can be read."""
    try:
        return TarIndex.open(path)
    except MillraceError:
        return None


def _checksum(table: bytes) -> str:
    return f"{zlib.crc32(table):08x}"


def _record(scan: TarScan, first_row: int) -> TarRecord:
    return TarRecord(
        **{name: getattr(scan, name) for name in _OF_A_SCAN},
        members=len(scan.names),
        readable=int((scan.kinds <= SYMLINK).sum()),
        recovered=int(scan.recovered.sum()),
        first_row=first_row,
    )
