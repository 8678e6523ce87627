"""A country's manifest CSV, from which shards are cut without the workflow: checked, its rows or
those of a few recordings chosen, its statuses written back.

The manifest's statuses say what is in shards; they are brought up to date in the file itself.
"""

from __future__ import annotations

import csv
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from millrace.common.errors import MillraceError, counted
from millrace.speech.columns import COMPLETED, PENDING, SCHEMA
from millrace.speech.corpus import given_splits
from millrace.speech.corpus.given_splits import GivenSplits
from millrace.speech.corpus.splits import SPLITS
from millrace.speech.country.tables import write_cells
from millrace.speech.names import Partition, safe_name
from millrace.speech.shards import index as shard_index
from millrace.speech.shards.part import NUMBER, Part, holds_parts

# What a row can do without; batch_id is for people.
_OPTIONAL = {"subset_id", "batch_id", "duration_seconds", "wer"}
_OPTIONAL |= {"original_transcript_start_idx", "original_transcript_end_idx"}
_REAL = {field.name for field in SCHEMA if pa.types.is_floating(field.type)}
_AGAIN = (
    "Mend the file, or have it made again: python -m millrace.speech.generate_manifest --country"
)


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
    def find(cls, folder: str, country: str) -> CsvManifest:
        """The CSVs of a country in `folder`. MillraceError if there is no manifest, a bad one, or
        the workflow's."""
        if holds_parts(folder, country):
            remedy = "Run snakemake speech_shards; or copy the two CSVs to a folder of their own"
            raise MillraceError("the workflow keeps its manifest here", folder, remedy)
        for name in dict.fromkeys((safe_name(country), country)):
            path = Path(folder, f"{name}_manifest.csv")
            if path.is_file():
                return cls.read(path, country)
        remedy = "python -m millrace.speech.generate_manifest --country makes one"
        raise MillraceError(f"no manifest CSV of country {country!r}", folder, remedy)

    @classmethod
    def read(cls, path: Path, country: str) -> CsvManifest:
        """Read a manifest, and the splits CSV beside it."""
        splits = path.with_name(path.name.removesuffix("_manifest.csv") + "_splits.csv")
        given = given_splits.read(str(splits)) if splits.is_file() else GivenSplits()
        try:
            with open(path, newline="", encoding="utf-8-sig") as handle:
                manifest = cls._of_lines(path, csv.reader(handle))
        except (UnicodeDecodeError, csv.Error) as error:
            raise MillraceError(f"cannot be read as CSV ({error})", str(path), _AGAIN) from None
        manifest._check_splits(country, given)
        return manifest

    @classmethod
    def _of_lines(cls, path: Path, reader: Any) -> CsvManifest:
        columns: list[str] = next(reader, [])
        missing = [name for name in SCHEMA.names if name not in columns and name not in _OPTIONAL]
        if missing:
            raise MillraceError(f"columns {', '.join(missing)} are missing", str(path), _AGAIN)

        cells: list[list[str]] = []
        rows: list[dict] = []
        for written in reader:
            where = f"{path}, line {reader.line_num}"
            if len(written) != len(columns):
                problem = f"{counted(len(written), 'cell')} for {counted(len(columns), 'column')}"
                raise MillraceError(problem, where, _AGAIN)
            row = _typed(dict(zip(columns, written, strict=True)), where)
            rows.append(row | {NUMBER: len(cells)})
            cells.append(written)
        return cls(path, columns, cells, rows)

    def _check_splits(self, country: str, given: GivenSplits) -> None:
        """Raise MillraceError for a recording that lies in two splits, by the rows or by the splits
        CSV."""
        splits: dict[str, str] = {}
        for row in self.rows:
            video_id = row["video_id"]
            split = splits.setdefault(video_id, row["split"])
            listed = given.of(country, video_id)
            if listed is not None and listed.split != row["split"]:
                split = listed.split
            if video_id and split != row["split"]:
                problem = f"recording {video_id!r} is in {split} and in {row['split']}"
                where = f"{self.path}, row {row[NUMBER] + 1}"
                if listed is not None:
                    where += f", and {listed.place}"
                raise MillraceError(problem, where, "Keep one of them")

    def parts(self, output_dir: str) -> Iterator[Part]:
        """The rows by split and subset: test, validation, then the subsets of train.

        Pending are, for the plan of the shards, the pending ones and those that the shards in
        `output_dir` hold already. Those that are completed elsewhere are left out.
        """
        grouped: dict[Partition, list[dict]] = defaultdict(list)
        for row in self.rows:
            grouped[_partition(row)].append(row)
        for partition in sorted(grouped, key=lambda partition: partition.order):
            made = shard_index.made_keys(partition, output_dir)
            rows = []
            for row in grouped[partition]:
                if row["key"] in made:
                    rows.append(row | {"status": PENDING})
                elif row["status"] == COMPLETED:
                    _refuse_unknown_tars(partition, output_dir, row["key"])
                else:
                    rows.append(row)
            yield Part(partition, rows)

    def parts_of_recordings(self, output_dir: str, count: int) -> Iterator[Part]:
        """The rows of `count` recordings, for a trial: those with segments in shards already, then
        the first that are pending. So a trial that is repeated adds nothing, and a larger one only
        adds."""
        made: set[str] = set()
        pending: dict[str, int] = {}
        parts = list(self.parts(output_dir))
        for part in parts:
            keys = shard_index.made_keys(part.partition, output_dir)
            made |= {row["video_id"] for row in part.rows if row["key"] in keys}
            for row in part.rows:
                if row["status"] == PENDING:
                    pending.setdefault(row["video_id"], row[NUMBER])

        others = sorted(pending.keys() - made, key=lambda video: pending[video])
        videos = made | {*others[: max(0, count - len(made))]}
        for part in parts:
            yield Part(part.partition, [row for row in part.rows if row["video_id"] in videos])

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
    split = row["split"]
    if split not in SPLITS:
        problem = f"split {split!r}, which is none of {', '.join(SPLITS)}"
        raise MillraceError(problem, where, _AGAIN)
    subset = row["subset_id"] if split == "train" else None
    if subset is not None:
        if not (subset.is_integer() and subset >= 0):
            raise MillraceError(f"subset_id {subset:g} is no whole number from 0 on", where, _AGAIN)
        subset = int(subset)
    return row | {"subset_id": subset}


def _partition(row: dict) -> Partition:
    """What holds all shards of a row's split and subset."""
    folder = row["split"] if row["subset_id"] is None else f"{row['split']}-{row['subset_id']}"
    return Partition(safe_name(row["country"]), folder, 0)


def _refuse_unknown_tars(partition: Partition, output_dir: str, key: str) -> None:
    """Raise MillraceError for a tar that may hold a completed segment, and would be replaced."""
    for tar in shard_index.tars_of(partition, output_dir):
        if shard_index.read_sidecar(tar) is None:
            sidecar = shard_index.sidecar_path(tar).name
            raise MillraceError(
                f"what it holds is unknown without {sidecar} beside it; {key}, which is"
                f" {COMPLETED}, may be in it",
                str(tar),
                "Bring that file back, or name another --output-dir",
            )
