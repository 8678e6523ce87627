"""Parquet manifests: any writer's column types, read in pieces of whole row groups."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from millrace.asr.manifests import columns as mc
from millrace.asr.manifests.manifest import ALIASES, OPTIONAL, Manifest, RowRange, readable
from millrace.common.errors import MillraceError

_SCAN_ROWS = (
    1 << 20
)  # a row group may hold a whole file of 75 M rows: the scan looks at it in pieces too


class Reader(Manifest):
    """Parquet with the columns of `aliases`."""

    def aliases(self) -> Mapping[str, Sequence[str]]:
        """The names of every column, the first one present counts; a subclass may need more
        columns."""
        return ALIASES

    def own_rows(
        self, rows: pa.Table | pa.RecordBatch, batch: pa.RecordBatch
    ) -> pa.Table | pa.RecordBatch:
        """Those of `rows` that are of this split; `batch` is how they stand in the file."""
        return rows

    def scan_file(self, file: int) -> set[str]:
        path, end = self.files[file], 0
        tars: set[str] = set()
        ranges: list[tuple[int, list[int]]] = []
        with readable(path):
            parquet, columns = self._opened(path)
            self.has_prompts |= bool(columns["prompt"])
            names = [columns[name] for name in columns if name == "tar_path" or name not in ALIASES]
            for group in range(parquet.metadata.num_row_groups):
                # Count rows and collect their tars; damage shows here, before anything is built.
                for read in _batches(parquet, (group,), names, _SCAN_ROWS):
                    batch = self.own_rows(read, read)
                    self.rows += len(batch)
                    paths = batch.column(columns["tar_path"])
                    paths = paths.dictionary if pa.types.is_dictionary(paths.type) else paths
                    tars.update(map(self.resolved, pc.unique(mc.text(paths)).to_pylist()))
                # Join row groups into ranges of at most `piece_rows`, or of one larger group.
                size = parquet.metadata.row_group(group).num_rows
                if not ranges or end + size - ranges[-1][0] > self.piece_rows:
                    ranges.append((end, []))
                ranges[-1][1].append(group)
                end += size
            self.ranges += [RowRange(file, first, tuple(groups)) for first, groups in ranges]
            if end != parquet.metadata.num_rows:
                raise OSError(
                    f"row groups of {end:,} rows in a file of {parquet.metadata.num_rows:,}"
                )
        return tars

    def read(self, rows: RowRange) -> Iterator[pa.Table]:
        path, first = self.files[rows.file], (rows.file << 40) + rows.first_row
        tars = {tar: number for number, tar in enumerate(self.tars)}
        with readable(path):
            parquet, columns = self._opened(path)
            names = [*filter(None, columns.values())]
            for batch in _batches(parquet, rows.groups, names, self.piece_rows):
                yield self.own_rows(self._table(batch, columns, tars, first), batch)
                first += len(batch)

    def _table(
        self, batch: pa.RecordBatch, columns: dict[str, str], tars: dict[str, int], first: int
    ) -> pa.Table:
        """The checked rows of a batch, of which `first` is the number of the first."""
        problem = np.zeros(len(batch), dtype=np.uint8)
        none = pa.nulls(len(batch))
        raw = {name: batch.column(alias) if alias else none for name, alias in columns.items()}
        values = {"tar": self._tar_column(raw["tar_path"], tars, problem)}
        prompts = ["prompt"] if self.has_prompts else []
        for name in ("tar_member_name", "transcript", "language", *prompts):
            values[name] = mc.text(raw[name], problem)
        values["duration_s"] = raw["duration_s"]
        table = mc.checked(values, problem, first + np.arange(len(batch), dtype=np.int64))
        for name in ("offset", "size") if self.has_offsets else ():
            table = table.append_column(name, pc.fill_null(raw[name].cast(pa.int64()), -1))
        return table

    def _opened(self, path: Path) -> tuple[pq.ParquetFile, dict[str, str]]:
        """The file, and the name that each column of `aliases` has in it ("": it lacks this
        optional one)."""
        schema, aliases = pq.read_schema(path), self.aliases()
        matches = {name: [one for one in aliases[name] if one in schema.names] for name in aliases}
        columns = {name: names[0] if names else "" for name, names in matches.items()}
        if twice := sorted({name for name in columns.values() if schema.names.count(name) > 1}):
            problem, remedy = (
                f"there are several columns named {', '.join(twice)}",
                "Keep one of each name",
            )
            raise MillraceError(problem, str(path), remedy)
        if missing := [name for name in columns if not columns[name] and name not in OPTIONAL]:
            present = ", ".join(sorted(schema.names)) or "none"
            needs = (
                "tar_path, tar_member_name, transcript, duration_s (language and prompt are"
                " optional)"
            )
            problem = f"there is no column for {', '.join(missing)}; there are {present}"
            raise MillraceError(problem, str(path), f"A manifest needs {needs}")
        for name in filter(None, columns.values()):
            mc.check_type(
                schema.field(name), mc.SECONDS if name == columns["duration_s"] else mc.TEXT, path
            )
        # Tar paths repeat: as a dictionary each is looked at once.
        return (
            pq.ParquetFile(path, read_dictionary=[columns["tar_path"]], buffer_size=1 << 20),
            columns,
        )

    def _tar_column(
        self, column: pa.Array, tars: dict[str, int], problem: np.ndarray
    ) -> np.ndarray:
        if not pa.types.is_dictionary(column.type):
            column = mc.text(column, problem).dictionary_encode()
        names = mc.text(column.dictionary).to_pylist()
        numbers = np.array(
            [*(tars.get(self.resolved(name), -1) for name in names), -1], dtype=np.int32
        )
        at = np.asarray(pc.fill_null(column.indices, len(names)))
        if (
            len(at) and at.min() < 0
        ):  # a damaged page; an index that is too large raises IndexError by itself
            raise IndexError(f"index {at.min()} into a dictionary")
        return numbers[at]


def _batches(
    parquet: pq.ParquetFile, groups: Sequence[int], columns: list[str], rows: int
) -> Iterator[pa.RecordBatch]:
    """The row groups in batches. Raises OSError if rows are missing: a damaged page may end too
    early."""
    count = 0
    for batch in parquet.iter_batches(
        rows, row_groups=list(groups), columns=columns, use_threads=False
    ):
        count += len(batch)
        yield batch
    promised = sum(parquet.metadata.row_group(group).num_rows for group in groups)
    if count != promised:
        raise OSError(f"{count:,} rows instead of {promised:,}")
