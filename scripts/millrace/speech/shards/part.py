"""The manifest part of a partition, as the shards take it."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from millrace.common.errors import MillraceError
from millrace.speech.columns import SCHEMA
from millrace.speech.names import Partition, safe_name

_AGAIN = "Run generate_manifest again"


def of_country(manifest_dir: str, country: str) -> list[str]:
    """The manifest parts of a country, below the folder that the manifest steps write to."""
    parts = []
    for part in sorted(Path(manifest_dir).glob("partitions/*/manifest.parquet")) if manifest_dir else ():
        name = Partition.parse(part.parent.name)
        parts += [str(part)] if name and name.country == safe_name(country) else []
    if not parts:
        problem = f"no partitions/*/manifest.parquet of country {country!r}"
        remedy = "Give --manifest-dir and --country, or --manifest; snakemake speech_manifest writes them"
        raise MillraceError(problem, manifest_dir or "--manifest-dir", remedy)
    return parts


def read_part(path: str) -> tuple[Partition, list[dict]]:
    """The partition and rows of a manifest part; an empty part is known by its file's or folder's name."""
    try:
        table = pq.read_table(path, partitioning=None)
        if missing := [name for name in SCHEMA.names if name not in table.column_names]:
            raise MillraceError(f"columns {', '.join(missing)} are missing", where=path, remedy=_AGAIN)
        rows = table.select(SCHEMA.names).cast(SCHEMA).to_pylist()
    except FileNotFoundError:
        raise MillraceError("no such manifest part", where=path, remedy=_AGAIN) from None
    except pa.ArrowException as error:
        raise MillraceError(f"not a manifest part ({error})", where=path, remedy=_AGAIN) from None
    names = {str(row["batch_id"]) for row in rows}
    names = names or {Path(path).stem, Path(path).resolve().parent.name}
    partitions = [partition for name in sorted(names) if (partition := Partition.parse(name))]
    if len(partitions) != 1 or (rows and len(names) > 1):
        listed = ", ".join(sorted(names)[:5])
        problem = f"batch_id must be one partition, <country>-<split>[-<subset>]-<number>, not {listed}"
        raise MillraceError(problem, where=path, remedy=_AGAIN)
    return partitions[0], rows
