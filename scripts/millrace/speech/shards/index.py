"""The tables beside shards: the index of what is in them, and the sidecar that proves a shard good.

The sidecar of `x-00000.tar` is `.x-00000.index.parquet`, hidden, so that loaders given the folder
see tars only. It holds a row for every segment planned for the shard, failed ones included, and in
its metadata the plan's digest and the tar's size and SHA-256. It is written after the tar: a tar
without one is not finished.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from millrace.common import atomic
from millrace.common.errors import MillraceError
from millrace.common.fingerprints.scale import SEARCHED_STEPS
from millrace.speech.columns import COMPLETED, DUPLICATE, INDEX_SCHEMA, SIDECAR_SCHEMA
from millrace.speech.names import Partition, ShardFile

_META = b"millrace"


@dataclass(frozen=True)
class Sidecar:
    """Facts on a shard. `tar_sha256` is None if all segments failed, so that no tar was written."""

    digest: str
    tar_size: int
    tar_sha256: str | None
    table: pa.Table

    def cut(self) -> list[dict]:
        """The rows of the segments that are cut: those in the tar, and copies that were left
        out."""
        rows = self.table.to_pylist()
        return [row for row in rows if row["status"] in (COMPLETED, DUPLICATE)]

    def has_fingerprints(self) -> bool:
        """Whether copies can be found by sound: 0.4.0 cut shards without fingerprints, too."""
        return all(row["words"] is not None for row in self.cut())

    def describes(self, tar: Path) -> bool:
        """Whether `tar` is as it was written: size and SHA-256, or no file if none was written."""
        try:
            size = os.path.getsize(tar)
        except OSError:
            return self.tar_sha256 is None
        if self.tar_sha256 is None or size != self.tar_size:
            return False
        with open(tar, "rb") as handle:
            return hashlib.file_digest(handle, "sha256").hexdigest() == self.tar_sha256


def sidecar_path(tar: Path) -> Path:
    """Where the sidecar of a tar lies."""
    return tar.with_name(f".{tar.stem}.index.parquet")


def write_sidecar(tar: Path, sidecar: Sidecar) -> None:
    """Write the sidecar of a tar atomically."""
    meta = {
        "digest": sidecar.digest,
        "tar_size": sidecar.tar_size,
        "tar_sha256": sidecar.tar_sha256,
    }
    write_table(
        sidecar_path(tar), sidecar.table.replace_schema_metadata({_META: orjson.dumps(meta)})
    )


def read_sidecar(tar: Path) -> Sidecar | None:
    """The sidecar of a tar; None if it is missing or cannot be read."""
    try:
        table = pq.read_table(sidecar_path(tar), partitioning=None)
        meta = orjson.loads(table.schema.metadata[_META])
        table = table.replace_schema_metadata(None)
        sidecar = Sidecar(meta["digest"], meta["tar_size"], meta["tar_sha256"], table)
    except (OSError, pa.ArrowException, KeyError, TypeError, ValueError):
        return None
    return sidecar if sidecar.table.schema == SIDECAR_SCHEMA else None


def sidecar_of(tar: Path) -> Sidecar:
    """The sidecar of a tar that was made whole. Raises MillraceError if it is missing or cannot be
    read."""
    sidecar = read_sidecar(tar)
    if sidecar is None:
        remedy = "Have it made again: snakemake speech --forcerun speech_create_shards"
        raise MillraceError("its sidecar is missing or cannot be read", str(tar), remedy)
    return sidecar


def made_keys(partition: Partition, output_dir: str | os.PathLike) -> set[str]:
    """The keys of the segments that were planned for the shards of a partition below
    `output_dir`."""
    keys: set[str] = set()
    for tar in tars_of(partition, output_dir):
        if sidecar := read_sidecar(tar):
            keys.update(sidecar.table["key"].to_pylist())
    return keys


def tars_of(partition: Partition, output_dir: str | os.PathLike) -> list[Path]:
    """The tars of a partition by the files below `output_dir`: there is a tar, or a sidecar of
    one."""
    folder = Path(output_dir, partition.country, partition.folder)
    files = []
    if folder.is_dir():
        files = [ShardFile.parse(path.name) for path in folder.iterdir()]
    shards = {
        file.shard for file in files if file and file.partition == partition and not file.temporary
    }
    return [folder / f"{shard}.tar" for shard in sorted(shards)]


def index_of(tables: Iterable[pa.Table]) -> pa.Table:
    """The index rows of sidecar tables: segments that are in a tar, in the tables' order."""
    chosen = [
        table.filter(table["offset"].is_valid()).select(INDEX_SCHEMA.names) for table in tables
    ]
    return pa.concat_tables([INDEX_SCHEMA.empty_table(), *chosen]).combine_chunks()


def word_steps(split: str) -> int:
    """How many steps apart the words of a segment's fingerprint stand: train is searched for copies
    of the others, which are few."""
    return SEARCHED_STEPS if split == "train" else 1


def write_table(path: str | os.PathLike, table: pa.Table) -> None:
    """Write a parquet file atomically, with fixed options: the same table gives the same bytes."""
    with atomic.replacing(path) as partial:
        pq.write_table(table, partial, compression="zstd", row_group_size=1 << 17, version="2.6")
