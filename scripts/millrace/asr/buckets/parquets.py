"""The parquets that a bucket build writes (of buckets, of dev and test, the table of tars): their
columns and row groups, and which old ones are removed."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from millrace.asr.buckets import edges as bucket_edges
from millrace.asr.buckets.config import ROW_GROUP, ParquetFacts
from millrace.asr.manifests import columns as mc
from millrace.asr.tars.stamp import Stamp
from millrace.common import atomic

TRAIN = "train"
SCHEMA = pa.schema(
    [
        ("tar_path", pa.dictionary(pa.int32(), mc.TEXT)),
        ("tar_member_name", mc.TEXT),
        ("offset", pa.int64()),
        ("size", pa.int64()),
        ("transcript", mc.TEXT),
        ("language", mc.TEXT),
        ("duration_s", pa.float64()),
        ("sample_id", pa.uint64()),
    ]
)
# Of the rows of a bucket, as the original script has them: its name, and its upper edge in seconds.
_OF_BUCKET = [pa.field("bucket_id", mc.TEXT), pa.field("bucket_max_duration", pa.float64())]


@dataclass
class _Writer:
    """One parquet, in row groups of exactly ROW_GROUP rows (but for the last) whatever the
    pieces."""

    path: Path
    parquet: pq.ParquetWriter
    bucket: tuple[str, float] | None = None  # its name and upper edge; None for another split
    rows: int = 0
    microseconds: int = 0  # whole numbers: the sum does not depend on the order
    longest: float = 0.0
    waiting: list[pa.Table] = field(default_factory=list)
    waiting_rows: int = 0

    def write(self, table: pa.Table) -> None:
        durations = table.column("duration_s").to_numpy()
        microseconds = np.rint(durations * 1e6).astype(np.int64)
        self.rows += len(table)
        self.microseconds += int(microseconds.sum())
        self.longest = max(self.longest, float(durations.max()))
        self.waiting.append(table)
        self.waiting_rows += len(table)
        if self.waiting_rows < ROW_GROUP:
            return
        whole = self.waiting_rows // ROW_GROUP * ROW_GROUP
        rows = pa.concat_tables(self.waiting)
        self.parquet.write_table(rows.slice(0, whole), row_group_size=ROW_GROUP)
        # take, not slice: a slice would keep all of the rows in memory
        rest = rows.take(np.arange(whole, len(rows)))
        self.waiting = [rest] if len(rest) else []
        self.waiting_rows = len(rest)

    def finish(self) -> None:
        if self.waiting_rows:
            self.parquet.write_table(pa.concat_tables(self.waiting), row_group_size=ROW_GROUP)
        self.parquet.close()

    def labelled(self, table: pa.Table) -> pa.Table:
        """The rows with the bucket's name and upper edge, if this is a bucket."""
        if self.bucket is None:
            return table
        for column, value in zip(_OF_BUCKET, self.bucket, strict=True):
            values = pa.repeat(pa.scalar(value, column.type), len(table))
            table = table.append_column(column, values)
        return table

    def facts(self) -> ParquetFacts:
        # Snakemake takes a small file of the same bytes for unchanged: a mended transcript must
        # show in it.
        with open(self.path, "rb") as handle:
            digest = hashlib.file_digest(handle, "sha256").hexdigest()
        return ParquetFacts(self.path, digest, self.rows, self.microseconds, self.longest)


class BucketFiles:
    """`train/<bucket>.parquet` and `<split>.parquet`."""

    def __init__(self, folder: Path, edges: Sequence[float], tars: Sequence[str]) -> None:
        self.folder = folder
        self.edges = tuple(edges)
        self.tars = pa.array(tars, mc.TEXT)
        self.ids = bucket_edges.bucket_ids(edges)
        self._writers: dict[str, list[_Writer]] = {}

    @contextlib.contextmanager
    def writing(self, split: str, has_prompts: bool) -> Iterator[None]:
        """Open the files of a split; they get their names when the block ends without an error."""
        schema = SCHEMA
        if has_prompts:
            schema = schema.append(pa.field("prompt", mc.TEXT))
        buckets: list[tuple[str, float] | None] = [None]
        names = [split]
        if split == TRAIN:
            schema = pa.schema([*schema, *_OF_BUCKET])
            buckets = list(zip(self.ids, self.edges[1:], strict=True))
            names = [f"{TRAIN}/{name}" for name in self.ids]
        with contextlib.ExitStack() as stack:
            self._writers[split] = writers = []
            for name, bucket in zip(names, buckets, strict=True):
                path = self.folder / f"{name}.parquet"
                parquet = pq.ParquetWriter(
                    stack.enter_context(atomic.replacing(path)),
                    schema,
                    use_dictionary=["tar_path", "language", "bucket_id", "bucket_max_duration"],
                    compression="snappy",
                    write_statistics=False,
                    # Readers see plain text columns; the dictionary is only an encoding.
                    store_schema=False,
                )
                stack.callback(parquet.close)
                writers.append(_Writer(path, parquet, bucket))
            yield
            for writer in writers:
                writer.finish()

    def write(self, split: str, tables: Sequence[pa.Table]) -> None:
        """Append one table per file of the split: its schema's columns, but `tar` (a number) for
        tar_path."""
        for writer, table in zip(self._writers[split], tables, strict=True):
            if not len(table):
                continue
            numbers = table.column("tar").combine_chunks()
            paths = pa.DictionaryArray.from_arrays(numbers, self.tars)
            labelled = writer.labelled(table.append_column("tar_path", paths))
            schema = writer.parquet.schema
            writer.write(labelled.select(schema.names).cast(schema))

    def sweep(self) -> None:
        """Remove bucket files of other edges, and files of splits that are gone."""
        ours: set[Path] = set()
        for writers in self._writers.values():
            ours.update(writer.path for writer in writers)
        there = set((self.folder / TRAIN).glob("b_*.parquet"))
        there.update(self.folder / f"{name}.parquet" for name in ("dev", "test"))
        for path in there - ours:
            path.unlink(missing_ok=True)
        for folder in (self.folder, self.folder / TRAIN):
            atomic.sweep_folder(folder)

    def facts(self, split: str) -> list[ParquetFacts]:
        """What was written of a split, file by file; of a split without rows nothing."""
        return [writer.facts() for writer in self._writers.get(split, [])]


def write_tars(path: Path, tars: Sequence[str], stamps: dict[str, Stamp]) -> None:
    """Write path, size, time and digest of every tar as indexed: readers refuse one that has
    changed."""
    rows = [stamps.get(tar, Stamp()) for tar in tars]
    table = pa.table(
        {
            "tar_path": pa.array(tars, pa.string()),
            "size": pa.array([stamp.size for stamp in rows], pa.int64()),
            "mtime_ns": pa.array([stamp.mtime_ns for stamp in rows], pa.int64()),
            "digest": pa.array([stamp.digest for stamp in rows], pa.string()),
        }
    )
    with atomic.replacing(path) as partial:
        pq.write_table(table, partial, compression="zstd")
