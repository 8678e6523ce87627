"""Parquet manifests of any writer's column types, read in pieces of row groups: missing or repeated
columns and rows that begin within a member are refused."""

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

# A row group may hold a whole file of 75 M rows: the scan looks at it in pieces too.
_SCAN_ROWS = 1 << 20
_NUMBERS = ("duration_s", "offset", "size")


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
        path = self.files[file]
        tars: set[str] = set()
        with readable(path):
            parquet, columns = self._opened(path)
            self.has_prompts |= bool(columns["prompt"])
            names = []
            for name, alias in columns.items():
                if name == "tar_path" or name not in ALIASES:
                    names.append(alias)
            has_seconds = _has_offsets_in_seconds(parquet.schema_arrow)
            if has_seconds:
                names.append("offset")
            # Count rows and collect their tars; damage shows here, before anything is built.
            groups = range(parquet.metadata.num_row_groups)
            for read in _batches(parquet, groups, names, _SCAN_ROWS):
                if has_seconds:
                    _refuse_parts(read.column("offset"), path)
                batch = self.own_rows(read, read)
                self.rows += len(batch)
                paths = batch.column(columns["tar_path"])
                if pa.types.is_dictionary(paths.type):
                    paths = paths.dictionary
                named = pc.unique(mc.text(paths)).to_pylist()
                tars.update(map(self.resolved, named))
            self.ranges += self._ranges(file, parquet.metadata)
        return tars

    def _ranges(self, file: int, metadata: pq.FileMetaData) -> list[RowRange]:
        """Row groups joined into ranges of at most `piece_rows`, or of one larger group. Raises
        OSError if they are not all rows of the file."""
        end = 0
        ranges: list[RowRange] = []
        for group in range(metadata.num_row_groups):
            size = metadata.row_group(group).num_rows
            start = end
            end += size
            last = ranges[-1] if ranges else None
            if last and end - last.first_row <= self.piece_rows:
                ranges[-1] = last._replace(groups=(*last.groups, group))
            else:
                ranges.append(RowRange(file, start, (group,)))
        if end != metadata.num_rows:
            raise OSError(f"row groups of {end:,} rows in a file of {metadata.num_rows:,}")
        return ranges

    def read(self, rows: RowRange) -> Iterator[pa.Table]:
        path = self.files[rows.file]
        first = (rows.file << 40) + rows.first_row
        with readable(path):
            parquet, columns = self._opened(path)
            names = [*filter(None, columns.values())]
            for batch in _batches(parquet, rows.groups, names, self.piece_rows):
                table = self._table(batch, columns, first)
                yield self.own_rows(table, batch)
                first += len(batch)

    def _table(self, batch: pa.RecordBatch, columns: dict[str, str], first: int) -> pa.Table:
        """The checked rows of a batch, of which `first` is the number of the first."""
        problem = np.zeros(len(batch), np.uint8)
        raw = {}
        for name, alias in columns.items():
            raw[name] = batch.column(alias) if alias else pa.nulls(len(batch))
        texts = ["tar_member_name", "transcript", "language"]
        if self.has_prompts:
            texts.append("prompt")

        values = {"tar": self._tar_column(raw["tar_path"], problem)}
        for name in texts:
            values[name] = mc.text(raw[name], problem)
        values["duration_s"] = raw["duration_s"]
        numbers = first + np.arange(len(batch), dtype=np.int64)
        table = mc.checked(values, problem, numbers)
        if self.has_offsets:
            for name in ("offset", "size"):
                column = raw[name].cast(pa.int64())
                table = table.append_column(name, pc.fill_null(column, -1))
        return table

    def _opened(self, path: Path) -> tuple[pq.ParquetFile, dict[str, str]]:
        """The file, and the name that each column of `aliases` has in it ("": it lacks this
        optional one)."""
        schema = pq.read_schema(path)
        columns = {}
        for name, aliases in self.aliases().items():
            columns[name] = next((alias for alias in aliases if alias in schema.names), "")
        missing = [name for name, alias in columns.items() if not alias and name not in OPTIONAL]
        if missing:
            present = ", ".join(sorted(schema.names)) or "none"
            problem = f"there is no column for {', '.join(missing)}; there are {present}"
            remedy = (
                "A manifest needs tar_path, tar_member_name, transcript, duration_s (language and"
                " prompt are optional)"
            )
            raise MillraceError(problem, str(path), remedy)
        for name, alias in columns.items():
            if schema.names.count(alias) > 1:
                problem = f"there are several columns named {alias}"
                raise MillraceError(problem, str(path), "Keep one of each name")
            if alias:
                mc.check_type(schema.field(alias), name in _NUMBERS, path)

        # Tar paths repeat: as a dictionary each is looked at once.
        parquet = pq.ParquetFile(path, read_dictionary=[columns["tar_path"]], buffer_size=1 << 20)
        return parquet, columns

    def _tar_column(self, column: pa.Array, problem: np.ndarray) -> np.ndarray:
        """The numbers of the tars that a column names, -1 where it names none."""
        if not pa.types.is_dictionary(column.type):
            column = mc.text(column, problem).dictionary_encode()
        names = mc.text(column.dictionary).to_pylist()
        known = [self.tar_numbers.get(self.resolved(name), -1) for name in names]
        numbers = np.array([*known, -1], np.int32)
        at = np.asarray(pc.fill_null(column.indices, len(names)))
        # A damaged page; an index that is too large raises IndexError by itself.
        if len(at) and at.min() < 0:
            raise IndexError(f"index {at.min()} into a dictionary")
        return numbers[at]


def _has_offsets_in_seconds(schema: pa.Schema) -> bool:
    """Whether a column says, as NeMo's, from which second of a member a row is; the bytes of
    Millrace's own parquets are whole numbers, with a size beside them."""
    if "offset" not in schema.names:
        return False
    kind = schema.field("offset").type
    if pa.types.is_integer(kind):
        return "size" not in schema.names
    return pa.types.is_floating(kind)


def _refuse_parts(seconds: pa.Array, path: Path) -> None:
    """Raise MillraceError if a row is a part of a member: the reader reads whole members."""
    if pc.any(pc.greater(seconds, 0)).as_py():
        problem = "the column offset has rows that begin within a member"
        remedy = "Write tars of members that are rows, and a manifest without offset"
        raise MillraceError(problem, str(path), remedy)


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
