"""The speech lane's sources, kept as partition files; run while the workflow is parsed, so nothing heavy."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from millrace.common import atomic, jsonl
from millrace.common.workflow import partitions
from millrace.speech.corpus import country as country_folder
from millrace.speech.corpus import splits as placements
from millrace.speech.corpus import twins
from millrace.speech.corpus.country import Country
from millrace.speech.names import SHARD_NUMBERS, safe_name


@dataclass
class Settings:
    """What of the lane's config decides on partitions."""

    countries_root: str
    assignment_file: str
    split_fractions: Mapping[str, float]
    train_subset_hours: float
    partition_hours: float
    countries: list[str] = field(default_factory=list)
    path_map: Mapping[str, str] = field(default_factory=dict)
    language_map: Mapping[str, str] = field(default_factory=dict)
    max_recordings: int | None = None


@dataclass
class Sources:
    """What the rules need: partition ids by country. `message` is one line for the user, or empty."""

    partitions: dict[str, list[str]] = field(default_factory=dict)
    message: str = ""


def load(folder: str | os.PathLike) -> Sources:
    """The partitions as the last sync left them."""
    try:
        return Sources(jsonl.read(Path(folder) / "index" / "partitions.json"))
    except FileNotFoundError:
        return Sources()


def sync(settings: Settings, folder: str | os.PathLike) -> Sources:
    """Bring the partition files under `folder` in step with the corpus, and return the partitions.

    `folder`/<partition>.json hold the recordings of one partition, `folder`/countries/<country>.json what no
    partition holds: unusable files and notes. Files whose content is the same are not written. Raises
    MillraceError for a country that is not there and a damaged assignment file, OSError for what may not be
    read or written.
    """
    folder = Path(folder)
    root = Path(settings.countries_root)
    if not root.is_dir():
        return Sources(load(folder).partitions, f"no corpus at {root}")
    # One cache for each kind of fact: an `audio_file` may name what is an alignment file.
    known = partitions.DigestCache(folder / "index" / "alignments.json")
    digests = partitions.DigestCache(folder / "index" / "audio.json")
    countries = [
        country_folder.read(path, settings.path_map, settings.language_map, known)
        for path in country_folder.folders(root, settings.countries)
    ]
    if not any(country.files for country in countries):
        # An empty folder is more often a disk that is not mounted than a wish to delete all shards.
        return Sources(load(folder).partitions, f"no alignment files under {root}")
    assignment = placements.load(settings.assignment_file, settings.partition_hours)
    for country in countries:
        placements.limit(country, assignment, settings.max_recordings)
    twins.find(countries, assignment, digests)
    twins.note_contents(countries, assignment, digests)
    for country in countries:
        placements.place_new(country, assignment, settings.split_fractions, settings.train_subset_hours)
    assignment.save()
    contents = _partition_contents(countries, assignment)
    index = {safe_name(country.name): [] for country in countries}
    for name, content in contents.items():
        index[safe_name(content["country"])].append(name)
    partitions.sync_files(folder, contents)
    partitions.sync_files(
        folder / "countries", {safe_name(c.name): _country_content(c, index) for c in countries}
    )
    known.save()
    digests.save()
    atomic.write_if_changed(folder / "index" / "partitions.json", atomic.json_bytes(index))
    return Sources(index)


def _partition_contents(countries: list[Country], assignment: partitions.Assignment) -> dict[str, dict]:
    contents: dict[str, dict] = {}
    by_name = {country.name: country for country in countries}
    for placement in assignment.placements.values():
        country = by_name.get(placement.labels["country"])
        recording = country.recordings.get(placement.labels["video_id"]) if country else None
        if recording is None:
            continue
        name = f"{placement.group}-{placement.number * SHARD_NUMBERS:05d}"
        content = contents.setdefault(
            name,
            {
                "partition": name,
                "country": country.name,
                "language": country.language,
                "split": placement.labels["split"],
                "subset_id": placement.labels["subset_id"],
                "recordings": [],
            },
        )
        content["recordings"].append(
            {
                "video_id": recording.video_id,
                "twin_of": recording.twin_of,
                "twin_split": twins.other_split(recording, placement, assignment),
                "transcripts": recording.transcripts,
            }
        )
    return contents


def _country_content(country: Country, index: Mapping[str, list[str]]) -> dict:
    return {
        "country": country.name,
        "language": country.language,
        "files": country.files,
        "recordings": len(country.recordings),
        "transcripts": sum(len(recording.transcripts) for recording in country.recordings.values()),
        "partitions": index[safe_name(country.name)],
        "rejected": country.rejected,
        "notes": country.notes,
    }
