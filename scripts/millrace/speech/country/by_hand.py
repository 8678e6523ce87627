"""A country's manifest without the workflow, as the CSVs that the original script made."""

from __future__ import annotations

import csv
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from millrace.common import jsonl
from millrace.common.errors import MillraceError
from millrace.common.ledger import Ledger
from millrace.common.workflow.sources import sync
from millrace.speech.country import tables
from millrace.speech.country.csv_manifest import CsvManifest
from millrace.speech.manifest import build
from millrace.speech.manifest.segments import Limits
from millrace.speech.names import Partition, safe_name
from millrace.speech.shards import part

# What makes a row another one: else it keeps its status.
_CONTENT = (
    "source_audio_path",
    "start_seconds",
    "end_seconds",
    "human_transcript",
    "asr_transcript",
    "cer",
)


@dataclass(frozen=True)
class Generated:
    """What became of a country; `known` rows were in the manifest before, `gone` ones are no
    more."""

    manifest: Path
    ledger: Ledger
    shares: str
    known: int
    gone: int
    warnings: list[str]

    def line(self) -> str:
        """One line for the log."""
        ledger = self.ledger
        counts = f"{ledger.rows_in} segments found, {ledger.rows_out} in the manifest"
        reasons = f" ({ledger.reasons()})" if ledger.rows_rejected else ""
        before = ""
        if self.known or self.gone:
            before = f"; {self.known} were in it before, {self.gone} more are gone"
        return (
            f"{self.manifest}: {counts}, {ledger.rows_rejected} rejected{reasons}{before};"
            f" {self.shares}"
        )


class _Country(NamedTuple):
    """A country as the workflow's parse has it: its partitions, files that cannot be used, and
    notes."""

    partitions: list[dict]
    rejected: list[dict]
    notes: list[str]


def generate(
    country: str, collect: Callable[..., Any], settings: Any, manifest_dir: str, limits: Limits
) -> Generated:
    """Make `<country>_manifest.csv`, `<country>_splits.csv` and `<country>_rejects.csv` in
    `manifest_dir`.

    `collect` and `settings` are those of the lane's sources. Recordings keep the split of the
    splits CSV that is there, rows that have not changed their status. Raises MillraceError, and
    SourcesMissing for a corpus that is not there.
    """
    if part.of_country(manifest_dir, country):
        remedy = "Name another --manifest-dir; the workflow makes these: snakemake speech_manifest"
        raise MillraceError("the workflow keeps its manifest here", manifest_dir, remedy)
    stem = Path(manifest_dir, safe_name(country))
    splits = Path(f"{stem}_splits.csv")
    before = _before(CsvManifest.find(manifest_dir, country), splits)
    read = _read(country, collect, settings, splits)
    parts = [build.generate(partition, limits) for partition in read.partitions]

    recordings = [recording for each in parts for recording in each.recordings]
    tables.write_splits(splits, [*recordings, *_gone_recordings(splits, recordings)])
    rejects = [{"country": country, "segment": None} | row for row in read.rejected]
    rejects += [row for each in parts for row in each.rejects]
    tables.write_csv(f"{stem}_rejects.csv", tables.REJECT_COLUMNS, rejects)
    rows = _merged([row for each in parts for row in each.rows], before)
    tables.write_csv(f"{stem}_manifest.csv", tables.MANIFEST_COLUMNS, rows)

    known = sum(row["key"] in before for row in rows)
    ledgers = (each.ledger for each in parts)
    return Generated(
        manifest=Path(f"{stem}_manifest.csv"),
        ledger=Ledger.total("speech_generate_manifest", country, ledgers),
        shares=tables.split_shares(recordings),
        known=known,
        gone=len(before) - known,
        warnings=[
            *read.notes,
            *(f"{r['source_audio_path']}: {w}" for r in recordings for w in r["warnings"]),
        ],
    )


def _read(country: str, collect: Callable[..., Any], settings: Any, splits: Path) -> _Country:
    """Read a country as the parse does; recordings that `splits` does not name are placed by
    hours."""
    name = safe_name(country)
    splits_file = str(splits) if splits.is_file() else ""
    with tempfile.TemporaryDirectory() as scratch:
        assignment = f"{scratch}/assignment.jsonl"
        settings = replace(
            settings, countries=[country], assignment_file=assignment, splits_file=splits_file
        )
        folder = Path(scratch, "partitions")
        synced = sync(collect, settings, folder).required()
        if name not in synced.partitions:
            remedy = "Name the folder of the countries: --countries-root"
            raise MillraceError(
                f"no corpus with the country {country!r}", settings.countries_root, remedy
            )
        ids = sorted(synced.partitions[name], key=_order)
        partitions = [jsonl.read(folder / f"{partition}.json") for partition in ids]
        rejected = jsonl.read(folder / f"countries/{name}.json")["rejected"]
        return _Country(partitions, rejected, synced.notes)


def _order(partition_id: str) -> tuple[int, int, int]:
    partition = Partition.parse(partition_id)
    assert partition is not None
    return partition.order


def _before(manifest: CsvManifest | None, splits: Path) -> dict[str, dict]:
    """The rows of the manifest that is there, by key. MillraceError if they would lose
    something."""
    if manifest is None:
        return {}
    if not splits.is_file():
        remedy = "Bring it back; or delete the manifest too, and all splits are drawn anew"
        raise MillraceError(
            f"there is a manifest, but no {splits.name} that keeps its splits", str(splits), remedy
        )
    if foreign := [name for name in manifest.columns if name not in tables.MANIFEST_COLUMNS]:
        remedy = "Move the file away, and a new one is made with the same splits"
        raise MillraceError(
            f"columns {', '.join(foreign)} would be lost", str(manifest.path), remedy
        )
    return {row["key"]: row for row in manifest.rows}


def _merged(rows: list[dict], before: dict[str, dict]) -> list[dict]:
    """The rows, those of before first and in their order: what is in shards stays where it is."""
    places = {key: place for place, key in enumerate(before)}
    ordered = sorted(rows, key=lambda row: places.get(row["key"], len(places)))
    return [_with_status(row, before.get(row["key"])) for row in ordered]


def _with_status(row: dict, before: dict | None) -> dict:
    """A row with the status it had, if it says what it said."""
    if before is None or any(row[name] != before[name] for name in _CONTENT):
        return row
    return row | {name: before[name] for name in ("status", "error_message", "batch_id")}


def _gone_recordings(splits: Path, recordings: list[dict]) -> Iterator[dict]:
    """What the splits CSV says of recordings that are no more: one that comes back keeps its
    split."""
    present = {recording["video_id"] for recording in recordings}
    if splits.is_file():
        with open(splits, newline="", encoding="utf-8-sig") as handle:
            yield from (row for row in csv.DictReader(handle) if row.get("video_id") not in present)
