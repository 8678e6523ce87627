"""Parquet manifests: any writer's column types, read in pieces of whole row groups."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from millrace.asr.manifests import columns as mc
from millrace.asr.manifests.manifest import ALIASES, Manifest, RowRange, readable
from millrace.common.errors import MillraceError

_SCAN_ROWS = 1 << 20  # a row group may hold a whole file of 75 M rows: the scan looks at it in pieces too


class Reader(Manifest):
    """Parquet with the columns of `aliases`; a subclass may need `more_columns`."""

    more_columns: ClassVar[tuple[str, ...]] = ()

    def aliases(self) -> Mapping[str, Sequence[str]]:
        """The names of every column, the first one present counts."""
        return ALIASES

    def own_rows(self, batch: pa.RecordBatch) -> pa.Array | None:
        """Which rows are of this split; None: all of them."""
        return None

    def scan_file(self, file: int) -> set[str]:
        path, tars = self.files[file], set()
        with readable(path):
            parquet, columns = self._opened(path)
            names = [columns["tar_path"], *self.more_columns]
            groups: list[int] = []
            first = end = 0
            for group in range(parquet.metadata.num_row_groups):
                # Count rows and collect their tars; damage shows here, before anything is built.
                for batch in _batches(parquet, (group,), names, _SCAN_ROWS):
                    rows = self.own_rows(batch)
                    batch = batch if rows is None else batch.filter(rows)
                    self.rows += len(batch)
                    paths = batch.column(columns["tar_path"])
                    paths = paths.dictionary if pa.types.is_dictionary(paths.type) else paths
                    tars.update(
                        self.resolved(tar) for tar in pc.unique(mc.text(paths)).to_pylist() if tar is not None
                    )
                # Join row groups into ranges of at most `piece_rows`, or of one larger group.
                size = parquet.metadata.row_group(group).num_rows
                if groups and end + size - first > self.piece_rows:
                    self.ranges.append(RowRange(file, first, tuple(groups)))
                    groups, first = [], end
                groups.append(group)
                end += size
            if groups:
                self.ranges.append(RowRange(file, first, tuple(groups)))
            if end != parquet.metadata.num_rows:
                raise OSError(f"row groups of {end:,} rows in a file of {parquet.metadata.num_rows:,}")
        return tars

    def read(self, rows: RowRange) -> Iterator[pa.Table]:
        numbers, path, first = self.tar_numbers(), self.files[rows.file], rows.first_row
        with readable(path):
            parquet, columns = self._opened(path)
            names = [*filter(None, columns.values()), *self.more_columns]
            for batch in _batches(parquet, rows.groups, names, self.piece_rows):
                yield self._table(batch, columns, numbers, (rows.file << 40) + first)
                first += len(batch)

    def _opened(self, path: Path) -> tuple[pq.ParquetFile, dict[str, str]]:
        """The file, and the name that each column of `aliases` has in it ("" if it has no language)."""
        schema, aliases = pq.read_schema(path), self.aliases()
        columns = {
            name: next((alias for alias in aliases[name] if alias in schema.names), "") for name in aliases
        }
        chosen = [*columns.values(), *self.more_columns]
        if twice := sorted({name for name in chosen if schema.names.count(name) > 1}):
            problem = f"there are several columns named {', '.join(twice)}"
            raise MillraceError(problem, str(path), "Keep one of each name")
        missing = [name for name in columns if not columns[name] and name != "language"]
        missing += [name for name in self.more_columns if name not in schema.names]
        if missing:
            present = ", ".join(sorted(schema.names)) or "none"
            needs = "tar_path, tar_member_name, transcript, duration_s (language is optional)"
            problem = f"there is no column for {', '.join(missing)}; there are {present}"
            raise MillraceError(problem, str(path), f"A manifest needs {needs}")
        for name in filter(None, columns.values()):
            mc.check_type(schema.field(name), mc.SECONDS if name == columns["duration_s"] else mc.TEXT, path)
        # Tar paths repeat: as a dictionary each is looked at once.
        return pq.ParquetFile(path, read_dictionary=[columns["tar_path"]], buffer_size=1 << 20), columns

    def _table(
        self, batch: pa.RecordBatch, columns: dict[str, str], numbers: dict[str, int], first: int
    ) -> pa.Table:
        problem = np.zeros(len(batch), dtype=np.uint8)
        raw = {
            name: batch.column(alias) if alias else pa.nulls(len(batch)) for name, alias in columns.items()
        }
        values = {"tar": self._tar_column(raw["tar_path"], numbers, problem)}
        values |= {
            name: mc.text(raw[name], problem) for name in ("tar_member_name", "transcript", "language")
        }
        values["duration_s"] = raw["duration_s"]
        table = mc.checked(values, problem, first + np.arange(len(batch), dtype=np.int64))
        for name in ("offset", "size") if self.has_offsets else ():
            table = table.append_column(name, pc.fill_null(batch.column(name).cast(pa.int64()), -1))
        rows = self.own_rows(batch)
        return table if rows is None else table.filter(rows)

    def _tar_column(self, column: pa.Array, numbers: dict[str, int], problem: np.ndarray) -> np.ndarray:
        if not pa.types.is_dictionary(column.type):
            column = mc.text(column, problem).dictionary_encode()
        names = mc.text(column.dictionary).to_pylist()
        tars = np.array([*(numbers.get(self.resolved(name), -1) for name in names), -1], dtype=np.int32)
        at = pc.fill_null(column.indices, len(names)).to_numpy(zero_copy_only=False)
        if len(at) and at.min() < 0:  # a damaged page; an index that is too large raises IndexError by itself
            raise IndexError(f"index {at.min()} into a dictionary")
        return tars[at]


def _batches(
    parquet: pq.ParquetFile, groups: Sequence[int], columns: list[str], rows: int
) -> Iterator[pa.RecordBatch]:
    """The row groups in batches. Raises OSError if rows are missing: a damaged page may end too early."""
    count = 0
    for batch in parquet.iter_batches(rows, row_groups=list(groups), columns=columns, use_threads=False):
        count += len(batch)
        yield batch
    promised = sum(parquet.metadata.row_group(group).num_rows for group in groups)
    if count != promised:
        raise OSError(f"{count:,} rows instead of {promised:,}")
