"""A country's manifest as the CSVs of the original scripts: `<country>_manifest.csv`,
`<country>_splits.csv`.

The manifest's statuses say what is in shards; they are brought up to date in the file itself.
"""

from __future__ import annotations

import csv
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa

from millrace.common import cli
from millrace.common.errors import MillraceError, counted
from millrace.speech.columns import COMPLETED, PENDING, SCHEMA
from millrace.speech.corpus import given_splits
from millrace.speech.corpus.given_splits import GivenSplit, GivenSplits
from millrace.speech.corpus.splits import SPLITS
from millrace.speech.country.tables import write_cells
from millrace.speech.names import Partition, safe_name
from millrace.speech.shards import index as shard_index
from millrace.speech.shards.part import NUMBER, Part

# What a row can do without: the split may stand in the splits CSV alone, and batch_id is for
# people.
_OPTIONAL = {"subset_id", "split", "batch_id", "duration_seconds", "wer"}
_OPTIONAL |= {"original_transcript_start_idx", "original_transcript_end_idx"}
_REAL = {field.name for field in SCHEMA if pa.types.is_floating(field.type)}


class CsvManifest:
    """The rows of `<country>_manifest.csv`, in their order: cells as they are written, and
    typed."""

    def __init__(
        self, path: Path, columns: list[str], cells: list[list[str]], rows: list[dict]
    ) -> None:
        self.path = path
        self.columns = columns
        self.rows = rows
        self._cells = cells

    @classmethod
    def find(cls, folder: str, country: str) -> CsvManifest | None:
        """The CSVs of a country in `folder`; None if there is no manifest. MillraceError for bad
        ones."""
        for name in dict.fromkeys((safe_name(country), country)):
            path = Path(folder, f"{name}_manifest.csv")
            if path.is_file():
                return cls.read(path, country)
        return None

    @classmethod
    def read(cls, path: Path, country: str) -> CsvManifest:
        """Read a manifest, and the splits CSV beside it."""
        splits = path.with_name(path.name.removesuffix("_manifest.csv") + "_splits.csv")
        if splits.is_file():
            given = given_splits.read(str(splits))
        else:
            given = GivenSplits()
        try:
            with open(path, newline="", encoding="utf-8-sig") as handle:
                return cls._of_lines(path, country, given, csv.reader(handle))
        except (UnicodeDecodeError, csv.Error) as error:
            raise MillraceError(f"cannot be read as CSV ({error})", str(path), _AGAIN) from None

    @classmethod
    def _of_lines(cls, path: Path, country: str, given: GivenSplits, reader: Any) -> CsvManifest:
        columns: list[str] = next(reader, [])
        missing = [name for name in SCHEMA.names if name not in columns and name not in _OPTIONAL]
        if missing:
            raise MillraceError(f"columns {', '.join(missing)} are missing", str(path), _AGAIN)

        cells: list[list[str]] = []
        rows: list[dict] = []
        splits: dict[tuple[str, str], tuple[str, str]] = {}  # of recordings, and who says so
        for written in reader:
            where = f"{path}, line {reader.line_num}"
            if len(written) != len(columns):
                problem = f"{counted(len(written), 'cell')} for {counted(len(columns), 'column')}"
                raise MillraceError(problem, where, _AGAIN)
            row = _typed(dict(zip(columns, written, strict=True)), where)
            row |= _split_of(row, given.of(country, row["video_id"]), where)
            recording = row["country"], row["video_id"]
            split, first = splits.setdefault(recording, (row["split"], where))
            if row["video_id"] and split != row["split"]:
                problem = (
                    f"recording {row['video_id']!r} is in {split} there and {row['split']} here"
                )
                raise MillraceError(problem, f"{first}, and {where}", "Keep one of them")
            row[NUMBER] = len(cells)
            rows.append(row)
            cells.append(written)
        return cls(path, columns, cells, rows)

    def parts(self, output_dir: str, retry_errors: bool) -> list[Part]:
        """The rows by split and subset: test, validation, then the subsets of train.

        Pending are, for the plan of the shards, the pending ones, those that the shards in
        `output_dir` hold already, and with `retry_errors` those in error. Those that are completed
        elsewhere are left out.
        """
        grouped: dict[Partition, list[dict]] = defaultdict(list)
        for row in self.rows:
            grouped[_partition(row)].append(row)

        parts: list[Part] = []
        for partition in sorted(grouped, key=lambda partition: partition.order):
            made = shard_index.made_keys(partition, output_dir)
            completed = {row["key"] for row in grouped[partition] if row["status"] == COMPLETED}
            elsewhere = completed - made
            if elsewhere:
                _check_completed(sorted(elsewhere), partition, output_dir)
            rows = [
                _planned(row, made, retry_errors)
                for row in grouped[partition]
                if row["key"] not in elsewhere
            ]
            parts.append(Part(partition, rows))
        return parts

    def note(self, outcomes: Iterable[tuple[dict, str, str]]) -> None:
        """Write status and message of rows to the file, if any is another than before."""
        status_at = self.columns.index("status")
        message_at = self.columns.index("error_message")
        has_changed = False
        for row, status, message in outcomes:
            cells = self._cells[row[NUMBER]]
            if cells[status_at] == status and cells[message_at] == message:
                continue
            cells[status_at] = status
            cells[message_at] = message
            self.rows[row[NUMBER]] |= {"status": status, "error_message": message}
            has_changed = True
        if has_changed:
            write_cells(self.path, self.columns, self._cells)

    def line(self) -> str:
        """How many segments have which status."""
        counts = Counter(row["status"] for row in self.rows)
        statuses = [f"{count} {status}" for status, count in sorted(counts.items())]
        return f"{self.path}: {', '.join(statuses) or 'no segments'}"


_AGAIN = (
    "Mend the file, or have it made again: python -m millrace.speech.generate_manifest --country"
)


def _typed(cells: dict[str, str], where: str) -> dict:
    """A row of the CSV as SCHEMA has it."""
    row: dict = {name: cells.get(name, "") for name in SCHEMA.names}
    if not row["country"].strip():  # its shards would lie in the root folder
        raise MillraceError("the country is empty", where, _AGAIN)
    for name in [*_REAL, "subset_id"]:
        try:
            row[name] = float(row[name]) if row[name] else None
        except ValueError:
            raise MillraceError(f"{name} {row[name]!r} is no number", where, _AGAIN) from None
    return row


def _split_of(row: dict, given: GivenSplit | None, where: str) -> dict:
    """Split and subset of a row: its own, else those that the splits CSV gives its recording."""
    split = row["split"] or (given.split if given else "")
    if split not in SPLITS:
        problem = (
            f"recording {row['video_id']!r} has the split {split!r}, which is none of"
            f" {', '.join(SPLITS)}"
        )
        raise MillraceError(problem, where, _AGAIN)
    if given and given.split != split:
        problem = f"recording {row['video_id']!r} is in {split} here and in {given.split} there"
        raise MillraceError(problem, f"{where}, and {given.place}", "Keep one of them")
    if split != "train":
        return {"split": split, "subset_id": None}
    if given and row["subset_id"] is None:
        subset = given.subset
    else:
        subset = row["subset_id"]
    if subset is not None and not (float(subset).is_integer() and subset >= 0):
        raise MillraceError(f"subset_id {subset:g} is no whole number from 0 on", where, _AGAIN)
    return {"split": split, "subset_id": None if subset is None else int(subset)}


def _partition(row: dict) -> Partition:
    """What holds all shards of a row's split and subset."""
    folder = row["split"] if row["subset_id"] is None else f"{row['split']}-{row['subset_id']}"
    return Partition(safe_name(row["country"]), folder, 0)


def _planned(row: dict, made: Collection[str], retry_errors: bool) -> dict:
    """A row as the plan takes it: pending, if it is to come into shards or in them already."""
    is_error = row["status"] not in (PENDING, COMPLETED)
    takes_part = row["key"] in made or (retry_errors and is_error)
    if takes_part:
        return row | {"status": PENDING, "error_message": ""}
    return row


def _check_completed(keys: list[str], partition: Partition, output_dir: str) -> None:
    """Warn of rows completed elsewhere. MillraceError if a tar that may hold them would be
    replaced."""
    count = counted(len(keys), "segment")
    for tar in shard_index.tars_of(partition, output_dir):
        if shard_index.read_sidecar(tar) is None:
            sidecar = shard_index.sidecar_path(tar).name
            raise MillraceError(
                f"what it holds is unknown without {sidecar} beside it, and {count} of"
                f" {partition.stem} may be in it, as they are {COMPLETED}, such as {keys[0]}",
                str(tar),
                (
                    "Bring that file back, name another --output-dir, or delete the tar and set"
                    f" the status of what it holds to {PENDING}"
                ),
            )
    message = "%s: %s %s, but in no shard of %s: left alone, such as %s"
    cli.log.warning(message, partition.stem, count, COMPLETED, output_dir, keys[0])
