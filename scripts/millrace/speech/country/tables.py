"""A country's tables: columns and cells of manifest, splits and rejects as CSV, and the index; and
what the files of its partitions hold."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from millrace.common import atomic, jsonl
from millrace.common.errors import Damaged, own_file
from millrace.common.ledger import Ledger
from millrace.speech.columns import INDEX_SCHEMA, SCHEMA
from millrace.speech.names import Partition
from millrace.speech.shards.index import index_of, sidecar_of, tars_of

# The columns of the three CSVs.
MANIFEST_COLUMNS = tuple(SCHEMA.names)
SPLITS_COLUMNS = (
    "source_audio_path",
    "video_id",
    "duration_hours",
    "size_mb",
    "split",
    "subset_id",
)
REJECT_COLUMNS = ("country", "video_id", "transcript_id", "file", "segment", "reason", "detail")
ROW_GROUP = 1 << 17
_WHOLE = ("original_transcript_start_idx", "original_transcript_end_idx", "subset_id")


class PartitionFiles:
    """The files of one partition under the manifest and the shards folder."""

    def __init__(self, partition: str, manifest_dir: str, shards_dir: str = "") -> None:
        part, shards = (
            Path(folder) / "partitions" / partition for folder in (manifest_dir, shards_dir)
        )
        self.manifest = part / "manifest.parquet"
        self.recordings = part / "recordings.json"
        self.rejects = part / "rejects.jsonl"
        self.ledger = part / "ledger.json"
        self.index = shards / "index.parquet"
        self._partition = Partition.parse(partition)
        self._shards_dir = shards_dir

    def rows(self) -> Iterator[dict]:
        """The manifest rows, one row group at a time."""
        with own_file(self.manifest), pq.ParquetFile(self.manifest) as file:
            for group in range(file.num_row_groups):
                yield from file.read_row_group(group).to_pylist()

    def balance(self) -> Ledger:
        """The ledger of the manifest rows."""
        counts = jsonl.read(self.ledger)
        with own_file(self.ledger):
            return Ledger.from_dict(counts)

    def left_out(self) -> Iterator[dict]:
        """What the manifest rejected."""
        for number, row, _ in jsonl.lines(self.rejects):
            if not isinstance(row, dict) or not {"segment", "reason"} <= row.keys():
                raise Damaged(self.rejects, f"line {number}: {row}")
            yield row

    def tars(self) -> list[Path]:
        """The partition's tars, or where one lay whose segments are all left out."""
        if self._partition:
            return tars_of(self._partition, self._shards_dir)
        return []

    def sidecars(self) -> Iterator[pa.Table]:
        """What the sidecars of the tars tell: they alone know of segments that were left out."""
        for tar in self.tars():
            yield sidecar_of(tar).table

    def shard_rows(self, columns: Sequence[str]) -> pa.Table:
        """Where the segments lie in shards."""
        return index_of(self.sidecars()).select(list(columns))

    def final_rows(self) -> Iterator[dict]:
        """The manifest rows with the status that making the shards gave them."""
        outcome = ["key", "status", "error_message"]
        with own_file(self.index):
            table = pq.read_table(self.index, columns=outcome, partitioning=None)
        outcomes = {row["key"]: row for row in table.to_pylist()}
        for table in self.sidecars():
            outcomes |= {row["key"]: row for row in table.select(outcome).to_pylist()}
        for row in self.rows():
            if row["key"] not in outcomes:
                raise Damaged(self.index, f"{row['key']} of the manifest is missing")
            yield row | outcomes[row["key"]]


def write_csv(path: str | os.PathLike, columns: Sequence[str], rows: Iterable[Mapping]) -> int:
    """Write the `columns` of rows as CSV (read it with keep_default_na=False); return how many
    rows."""
    cells = ([_cell(name, row.get(name)) for name in columns] for row in rows)
    return write_cells(path, columns, cells)


def write_splits(path: str | os.PathLike, recordings: Iterable[Mapping]) -> None:
    """Write the splits CSV of a country: its recordings by name."""
    ordered = sorted(recordings, key=lambda row: (row["video_id"], row["source_audio_path"]))
    write_csv(path, SPLITS_COLUMNS, ordered)


def write_cells(
    path: str | os.PathLike, columns: Sequence[str], rows: Iterable[Sequence[object]]
) -> int:
    """Write rows of cells below the names of their columns as CSV; return how many rows."""
    count = 0
    with (
        atomic.replacing(path) as partial,
        open(partial, "w", newline="", encoding="utf-8") as handle,
    ):
        plain = csv.writer(handle, lineterminator="\n")
        # Readers take a lone carriage return for the end of a line; csv quotes it from Python 3.13
        # on only.
        quoting = csv.writer(handle, lineterminator="\n", quoting=csv.QUOTE_ALL)
        plain.writerow(columns)
        for cells in rows:
            has_return = any(isinstance(cell, str) and "\r" in cell for cell in cells)
            (quoting if has_return else plain).writerow(cells)
            count += 1
    return count


def _cell(name: str, value: Any) -> object:
    # Cells of a CSV that was read are text.
    if name in _WHOLE and value not in (None, ""):
        return int(float(value))
    return value


def write_index(path: str | os.PathLike, tables: Iterable[pa.Table]) -> None:
    """Write the tables as one, a row group of at most 131,072 rows at a time."""
    waiting = [INDEX_SCHEMA.empty_table()]
    count = 0
    with (
        atomic.replacing(path) as partial,
        pq.ParquetWriter(partial, INDEX_SCHEMA, compression="zstd") as writer,
    ):
        for table in tables:
            waiting.append(table)
            count += len(table)
            while count > ROW_GROUP:
                whole = pa.concat_tables(waiting)
                writer.write_table(whole.slice(0, ROW_GROUP))
                waiting = [whole.slice(ROW_GROUP)]
                count = count - ROW_GROUP
        writer.write_table(pa.concat_tables(waiting))
