"""The index of a partition of tars as one parquet file: a row per member, and a record of every tar."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterable

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from millrace.asr.tars.header import SYMLINK
from millrace.asr.tars.paths import REBUILD
from millrace.asr.tars.scan import FAILED, TarScan
from millrace.common.atomic import replacing
from millrace.common.errors import MillraceError

ROW_GROUP = 1 << 16
"""Members per row group, at least: tars are never split over two calls, small ones share a group."""

_KEY = b"millrace.tars"
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
_ENCODINGS = {
    "tar": "DELTA_BINARY_PACKED",
    "name": "DELTA_BYTE_ARRAY",
    "offset": "DELTA_BINARY_PACKED",
    "size": "DELTA_BINARY_PACKED",
}


@dataclasses.dataclass(frozen=True)
class TarRecord:
    """One tar when scanned: `size` in bytes, `digest` of its first, last member's and last block."""

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
    """Write the index of all scans to `path`, in their order; the same scans give the same bytes."""
    records, waiting, rows, first_row = [], [], 0, 0
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
            store_schema=False,
        ) as writer,
    ):
        for number, scan in enumerate(scans):
            count = len(scan.names)
            waiting.append(_table(number, scan))
            records.append(_record(scan, first_row))
            rows, first_row = rows + count, first_row + count
            if rows >= ROW_GROUP:
                _flush(writer, waiting)
                waiting, rows = [], 0
        _flush(writer, waiting)
        # ASCII only: a path that is not UTF-8 is kept as surrogates.
        table = json.dumps([dataclasses.asdict(record) for record in records], sort_keys=True)
        writer.add_key_value_metadata({_KEY.decode(): table})
    return records


class TarIndex:
    """The index of one partition. Opening reads only the footer; members are read tar by tar."""

    def __init__(self, file: pq.ParquetFile, tars: dict[str, TarRecord], path: str) -> None:
        self._file, self.tars, self.path = file, tars, path
        counts = [file.metadata.row_group(group).num_rows for group in range(file.metadata.num_row_groups)]
        self._ends = np.cumsum(counts, dtype=np.int64)
        self._cached: tuple[tuple[int, int], pa.Table] | None = None

    @classmethod
    def open(cls, path: str | os.PathLike) -> TarIndex:
        """Open the index at `path`. Raises MillraceError if there is none, or it is no index."""
        try:
            file = pq.ParquetFile(path)
            tars = [TarRecord(**fields) for fields in json.loads(file.metadata.metadata[_KEY])]
        except FileNotFoundError:
            raise MillraceError("no tar index there", where=os.fspath(path), remedy=REBUILD) from None
        except (OSError, pa.ArrowException, KeyError, TypeError, ValueError) as error:
            raise MillraceError(f"not a tar index ({error})", where=os.fspath(path), remedy=REBUILD) from None
        return cls(file, {tar.path: tar for tar in tars}, os.fspath(path))

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> TarIndex:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def record(self, tar_path: str | os.PathLike) -> TarRecord:
        """The record of a tar. Raises MillraceError if the index does not know it."""
        record = self.tars.get(os.fspath(tar_path))
        if record is None:
            problem = f"the index {self.path} does not hold this tar"
            raise MillraceError(problem, os.fspath(tar_path), REBUILD)
        return record

    def members(self, tar_path: str | os.PathLike) -> pa.Table:
        """All members of a tar in its order; none if its record says that it failed.

        name (raw bytes without a `./` prefix), int64 offset and size in bytes, -1 and 0 if there is nothing
        to read; kind (uint8, see header) says why; recovered (bool): it lies after damage.
        """
        record = self.record(tar_path)
        low, high = record.first_row, record.first_row + record.members
        if not record.members:
            return _SCHEMA.empty_table().drop_columns(["tar"])
        first, last = (int(np.searchsorted(self._ends, row, "right")) for row in (low, high - 1))
        # Small tars share a row group: the last one read stays for the next tar.
        if self._cached is None or self._cached[0] != (first, last):
            self._cached = ((first, last), self._file.read_row_groups(list(range(first, last + 1))))
        start = int(self._ends[first - 1]) if first else 0
        return self._cached[1].slice(low - start, high - low).drop_columns(["tar"])


def _table(number: int, scan: TarScan) -> pa.Table:
    count = len(scan.names)
    columns = [
        pa.array(np.full(count, number, np.int32)),
        pa.array(scan.names, pa.binary()),
        pa.array(scan.offsets),
        pa.array(scan.sizes),
        pa.array(scan.kinds),
        pa.array(scan.recovered),
    ]
    return pa.Table.from_arrays(columns, schema=_SCHEMA)


def _record(scan: TarScan, first_row: int) -> TarRecord:
    return TarRecord(
        scan.path,
        scan.size,
        scan.mtime_ns,
        scan.digest,
        scan.last_header,
        scan.status,
        scan.reason,
        members=len(scan.names),
        readable=int((scan.kinds <= SYMLINK).sum()),
        recovered=int(scan.recovered.sum()),
        duplicates=scan.duplicates,
        first_row=first_row,
    )


def _flush(writer: pq.ParquetWriter, tables: list[pa.Table]) -> None:
    if tables and (table := pa.concat_tables(tables)).num_rows:
        writer.write_table(table.combine_chunks(), row_group_size=table.num_rows)
