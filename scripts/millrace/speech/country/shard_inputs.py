"""Manifest rows for the shards: of one partition (parquet), or of a whole country (CSV, as in FORMATS of the
field)."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from millrace.common.errors import MillraceError
from millrace.speech.columns import COMPLETED, PENDING, SCHEMA
from millrace.speech.names import SHARD_NUMBERS, safe_name
from millrace.speech.shards.plan import Partition

_AGAIN = "Run generate_manifest again"
_MAKE = "Run snakemake speech_manifest"
_MEND = "Mend the row, or run snakemake speech_manifest for a new table"
# The order in which a country's splits are worked on.
SPLIT_ORDER = ("test", "validation", "train")
_REQUIRED = ("key", "video_id", "source_audio_path", "start_seconds", "end_seconds", "status")


def read_part(path: str) -> tuple[Partition, list[dict]]:
    """The partition and rows of a manifest part. An empty part is known by the name of its file, or of its
    folder."""
    try:
        table = pq.read_table(path, partitioning=None)
        missing = [name for name in SCHEMA.names if name not in table.column_names]
        if missing:
            raise MillraceError(f"columns {', '.join(missing)} are missing", where=path, remedy=_AGAIN)
        rows = table.select(SCHEMA.names).cast(SCHEMA).to_pylist()
    except FileNotFoundError:
        raise MillraceError("no such manifest part", where=path, remedy=_AGAIN) from None
    except pa.ArrowException as error:
        raise MillraceError(f"not a manifest part ({error})", where=path, remedy=_AGAIN) from None
    names = {row["batch_id"] for row in rows} if rows else {Path(path).stem, Path(path).resolve().parent.name}
    found = [partition for name in sorted(map(str, names)) if (partition := Partition.parse(name))]
    if len(found) != 1 or (rows and len(names) > 1):
        listed = ", ".join(sorted(map(str, names))[:5])
        problem = f"batch_id must be one partition, <country>-<split>[-<subset>]-<number>, not {listed}"
        raise MillraceError(problem, where=path, remedy=_AGAIN)
    return found[0], rows


def read_country(manifest_dir: str, country: str) -> list[dict]:
    """The rows of <country>_manifest.csv, with the columns of a manifest part.

    Rows said to be complete count as pending: whether they are decides what lies on disk. Where `split` or
    `subset_id` is not in the manifest, <country>_splits.csv is asked.
    """
    path = Path(manifest_dir) / f"{country}_manifest.csv"
    splits_path = Path(manifest_dir) / f"{country}_splits.csv"
    rows = []
    assigned: dict[str, dict[str, str]] = {}
    if splits_path.exists():
        assigned = {row["video_id"]: row for _, row in _csv_rows(splits_path, ("video_id",))}
    for place, text in _csv_rows(path, _REQUIRED):
        split = assigned.get(text["video_id"], {})
        text["split"] = text.get("split") or split.get("split", "")
        text["subset_id"] = text.get("subset_id") or split.get("subset_id", "")
        row = {
            column.name: _value(text.get(column.name, ""), column.type, column.name, place)
            for column in SCHEMA
        }
        if row["split"] not in SPLIT_ORDER:
            problem = f"split {row['split']!r} is none of {', '.join(SPLIT_ORDER)}"
            raise MillraceError(
                problem, where=place, remedy=f"Mend the row, or the recording's in {splits_path}"
            )
        if not (row["subset_id"] is None or (row["split"] == "train" and row["subset_id"] >= 0)):
            row["subset_id"] = None
        row["country"] = row["country"] or country
        if (
            row["duration_seconds"] is None
            and row["start_seconds"] is not None
            and row["end_seconds"] is not None
        ):
            row["duration_seconds"] = round(row["end_seconds"] - row["start_seconds"], 6)
        if row["status"] == COMPLETED:
            row["status"], row["error_message"] = PENDING, ""
        rows.append(row)
    return rows


def pending_positions(rows: list[dict], max_videos: int | None) -> list[int]:
    """Positions of the rows to work on: of the first `max_videos` recordings that have pending segments, or
    of all."""
    pending = dict.fromkeys(row["video_id"] for row in rows if row["status"] == PENDING)
    chosen = set(list(pending)[:max_videos])
    return [position for position, row in enumerate(rows) if row["video_id"] in chosen]


def group(rows: list[dict], positions: Iterable[int], country: str) -> list[tuple[Partition, list[int]]]:
    """Partitions in the order of work, with the positions of their rows.

    `batch_id` says which; rows without one (or with one of another split) share one block of numbers per
    split and subset, after those that are taken.
    """
    named: dict[Partition, list[int]] = {}
    nameless: dict[str, list[int]] = {}
    for position in positions:
        row = rows[position]
        folder = row["split"] if row["subset_id"] is None else f"{row['split']}-{row['subset_id']}"
        partition = Partition.parse(row["batch_id"])
        if partition and (partition.country, partition.folder) == (safe_name(country), folder):
            named.setdefault(partition, []).append(position)
        else:
            nameless.setdefault(folder, []).append(position)
    taken = {
        partition.folder: max(p.first for p in named if p.folder == partition.folder) for partition in named
    }
    for folder, members in nameless.items():
        first = taken[folder] + SHARD_NUMBERS if folder in taken else 0
        named[Partition(safe_name(country), folder, first)] = members
    return sorted(named.items(), key=lambda entry: _work_order(entry[0]))


def _work_order(partition: Partition) -> tuple[int, int, int]:
    split, _, subset = partition.folder.partition("-")
    return SPLIT_ORDER.index(split), int(subset or -1), partition.first


def _csv_rows(path: Path, required: Iterable[str]) -> Iterable[tuple[str, dict[str, str]]]:
    """(place for messages, row) of a CSV; all values are text, and nothing is taken for missing but what is
    empty."""
    csv.field_size_limit(sys.maxsize)
    try:
        with open(path, newline="", encoding="utf-8-sig") as handle:
            reader = csv.DictReader(handle, strict=True)
            missing = [name for name in required if name not in (reader.fieldnames or ())]
            if missing:
                raise MillraceError(
                    f"columns {', '.join(missing)} are missing", where=str(path), remedy=_MAKE
                )
            for row in reader:
                place = f"{path}, line {reader.line_num}"
                if None in row or None in row.values():
                    raise MillraceError(
                        "the number of fields differs from the head's", where=place, remedy=_MEND
                    )
                yield place, row
    except FileNotFoundError:
        raise MillraceError(
            "no such file", where=str(path), remedy=f"{_MAKE}, or mend --manifest-dir"
        ) from None
    except (csv.Error, UnicodeDecodeError) as error:
        raise MillraceError(f"not a CSV in UTF-8 ({error})", where=str(path), remedy=_MAKE) from None


def _value(text: str, kind: pa.DataType, name: str, place: str) -> str | float | int | None:
    if pa.types.is_string(kind):
        return text
    if not text.strip():
        return None
    try:
        number = float(text)
        return int(number) if pa.types.is_integer(kind) else number
    except (ValueError, OverflowError):
        raise MillraceError(f"{name} is {text[:40]!r}, not a number", where=place, remedy=_MEND) from None
