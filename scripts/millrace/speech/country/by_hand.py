"""Makes a country's manifest without the workflow: reads the corpus and writes the CSVs that the
original script made; what is there is not written over."""

from __future__ import annotations

import csv
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from millrace.common import jsonl
from millrace.common.errors import MillraceError
from millrace.common.ledger import Ledger
from millrace.common.workflow.sources import sync
from millrace.speech.country import tables
from millrace.speech.manifest import build
from millrace.speech.manifest.segments import Limits
from millrace.speech.names import Partition, safe_name
from millrace.speech.shards.part import holds_parts


class Generated(NamedTuple):
    """What became of a country."""

    manifest: Path
    ledger: Ledger
    warnings: list[str]

    def line(self) -> str:
        """One line for the log."""
        return build.line(self.manifest, self.ledger)


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
    splits CSV that is there. Raises MillraceError, and SourcesMissing for a corpus that is missing.
    """
    if holds_parts(manifest_dir, country):
        remedy = "Name another --manifest-dir; the workflow makes these: snakemake speech_manifest"
        raise MillraceError("the workflow keeps its manifest here", manifest_dir, remedy)
    stem = Path(manifest_dir, safe_name(country))
    manifest = Path(f"{stem}_manifest.csv")
    if manifest.exists():
        remedy = "Move it away: the splits stay as they are, and shards that are whole are kept"
        raise MillraceError("the manifest is there, with its statuses", str(manifest), remedy)

    splits = Path(f"{stem}_splits.csv")
    read = _read(country, collect, settings, splits)
    parts = [build.generate(partition, limits) for partition in read.partitions]
    recordings = [recording for each in parts for recording in each.recordings]
    listed = [*recordings, *_gone(splits, recordings)]
    # One that names no recording is refused where it is read.
    if listed:
        tables.write_splits(splits, listed)
    rejects = [{"country": country, "segment": None} | row for row in read.rejected]
    rejects += [row for each in parts for row in each.rejects]
    tables.write_csv(f"{stem}_rejects.csv", tables.REJECT_COLUMNS, rejects)
    rows = (row for each in parts for row in each.rows)
    tables.write_csv(manifest, tables.MANIFEST_COLUMNS, rows)

    warnings = list(read.notes)
    for recording in recordings:
        warnings += [f"{recording['source_audio_path']}: {each}" for each in recording["warnings"]]
    ledgers = (each.ledger for each in parts)
    total = Ledger.total("speech_generate_manifest", country, ledgers)
    return Generated(manifest, total, warnings)


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


def _gone(splits: Path, recordings: list[dict]) -> Iterator[dict]:
    """What the splits CSV says of recordings that are no more: one that comes back keeps its
    split."""
    present = {recording["video_id"] for recording in recordings}
    if splits.is_file():
        with open(splits, newline="", encoding="utf-8-sig") as handle:
            yield from (row for row in csv.DictReader(handle) if row.get("video_id") not in present)
