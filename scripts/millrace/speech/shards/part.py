"""The manifest part of a partition, as the shards take it."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from millrace.common.errors import MillraceError
from millrace.speech.columns import SCHEMA
from millrace.speech.names import Partition, safe_name

# The place of a row in a manifest that holds all splits; those of one partition have none.
NUMBER = "number_in_manifest"
_AGAIN = "Run generate_manifest again"


class Part(NamedTuple):
    """A partition and its manifest rows."""

    partition: Partition
    rows: list[dict]


def holds_parts(manifest_dir: str, country: str) -> bool:
    """Whether the workflow keeps manifest parts of a country below a folder."""
    for path in Path(manifest_dir).glob("partitions/*/manifest.parquet"):
        partition = Partition.parse(path.parent.name)
        if partition and partition.country == safe_name(country):
            return True
    return False


def read_part(path: str) -> Part:
    """The partition and rows of a manifest part; an empty part is known by its file's or folder's
    name."""
    try:
        table = pq.read_table(path, partitioning=None)
        if missing := [name for name in SCHEMA.names if name not in table.column_names]:
            raise MillraceError(f"columns {', '.join(missing)} are missing", path, _AGAIN)
        rows = table.select(SCHEMA.names).cast(SCHEMA).to_pylist()
    except FileNotFoundError:
        raise MillraceError("no such manifest part", path, _AGAIN) from None
    except pa.ArrowException as error:
        raise MillraceError(f"not a manifest part ({error})", path, _AGAIN) from None
    names = {str(row["batch_id"]) for row in rows} or {Path(path).resolve().parent.name}
    partition = Partition.parse(min(names)) if len(names) == 1 else None
    if partition is None:
        listed = ", ".join(sorted(names)[:5])
        problem = (
            f"batch_id must be one partition, <country>-<split>[-<subset>]-<number>, not {listed}"
        )
        raise MillraceError(problem, path, _AGAIN)
    return Part(partition, rows)
