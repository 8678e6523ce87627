"""What was built of recordings before: whether their alignments say the same now, and what differs.

A parse knows of an alignment file its content, or of one whose ends alone it has read a version:
size and mtime. The jobs that read it whole note beside their manifests what they saw.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

from millrace.common import jsonl
from millrace.speech.corpus import alignment, tables
from millrace.speech.names import Partition

# The stage of the manifests, which the jobs' notes are of.
FIRST_STAGE = "manifest"
# What the jobs of partitions note of alignment files: what they have read, and what they could not.
NOTED = "manifest/partitions/{}/{}.json"


class Note(NamedTuple):
    """What a job has noted of an alignment file."""

    digest: str | None = None  # that the parse gave it
    version: str | None = None  # of what was read
    content: str | None = None  # its digest
    parts: Mapping[str, int] = {}  # checksums, by what a user calls them


def notes_of(results: Path, partition: str) -> dict[str, Note]:
    """What the job of a partition has read, by path."""
    noted = jsonl.read_or({}, results / NOTED.format(partition, "alignments"))
    return {path: Note(*values) for path, values in noted.items()}


def country_of(partition: str) -> str:
    """The country of a partition, as it stands in paths; what is no partition stays."""
    parsed = Partition.parse(partition)
    return parsed.country if parsed else partition


def as_before(content: dict, folder: Path) -> dict:
    """The content of a partition file; its alignments keep their digest if they say what they said
    when they were built, and are numbered (`later`: 1, 2, ...) if they came after others of their
    recording went into shards. If no file tells of that, all have come at once.
    """
    name = content["partition"]
    results = folder.parent
    is_sharded = (results / f"shards/partitions/{name}/index.parquet").exists()
    earlier = _earlier(name, folder)
    notes = cache(partial(notes_of, results, name))
    for recording in content["recordings"]:
        before = earlier.get(recording["video_id"], {})
        new = 0
        if before and is_sharded:
            new = max(transcript.get("later", 0) for transcript in before.values()) + 1

        transcripts = recording["transcripts"]
        for transcript in transcripts:
            was = before.get(os.path.basename(transcript["path"]), {"later": new})
            if len(transcripts) > 1 and was.get("later"):
                transcript["later"] = was["later"]
            if was.get("digest") != transcript["digest"]:
                note = notes().get(transcript["path"], Note())
                transcript["digest"] = _digest(transcript, was, note)
    return content


def _earlier(partition: str, folder: Path) -> dict[str, dict[str, dict]]:
    """The transcripts of a partition when it was built, by recording and name of the file."""
    # Before anything is built the last sync counts, which may have been a dry run's.
    for place in (f"built/{FIRST_STAGE}", "built", ""):
        content = jsonl.read_or({}, folder / place / f"{partition}.json")
        if content:
            break
    earlier = {}
    for recording in content.get("recordings", ()):
        transcripts = recording["transcripts"]
        by_name = {os.path.basename(transcript["path"]): transcript for transcript in transcripts}
        earlier[recording["video_id"]] = by_name
    return earlier


def _digest(transcript: Mapping, before: Mapping, note: Note) -> str:
    """The digest of an alignment: that of `before` if it says the same."""
    was = before.get("digest", note.digest)
    digest = transcript["digest"]
    if was is None:
        return digest
    # What was behind a version the job has noted.
    says = note.content if digest == note.version else digest
    said = note.content if was == note.digest else was
    if _is_version(says) and not _is_version(said):
        read = alignment.read(transcript["path"])
        says = read.digest if read else says
    return was if says == said else digest


def _is_version(digest: str | None) -> bool:
    return digest is not None and "-" in digest


def names_of_made(folder: Path) -> set[str]:
    """The names of recordings of which manifest or shards were made, by the folder of partitions: a
    trial takes nothing from them."""
    made: set[str] = set()
    for path in (folder / "built").glob("*.json"):
        content = jsonl.read_or({}, path)
        made |= _names(content.get("country"), content.get("recordings", ()))
    for path in folder.parent.glob("manifest/partitions/*/recordings.json"):
        country = jsonl.read_or({}, folder / f"{path.parent.name}.json").get("country")
        made |= _names(country, jsonl.read_or([], path))
    return made


def _names(country: str | None, recordings: Iterable[Mapping]) -> set[str]:
    return {f"{country}/{recording['video_id']}" for recording in recordings}


class Kinds:
    """What differs between two states of a recording, in words."""

    def __init__(self, results: Path, index: Path) -> None:
        # By partition, and by country: each file is read once.
        self._notes = cache(partial(notes_of, results))
        self._facts = cache(partial(tables.facts, index))

    def __call__(self, old: Mapping, new: Mapping) -> list[str]:
        words = _differing(("partition", "language"), old, new)
        before = {transcript["transcript_id"]: transcript for transcript in old["transcripts"]}
        after = {transcript["transcript_id"]: transcript for transcript in new["transcripts"]}
        if before.keys() != after.keys():
            words.append("transcripts")
        for name in before.keys() & after.keys():
            was = before[name]
            now = after[name]
            if was["digest"] != now["digest"]:
                noted = self._notes(old["partition"]).get(was["path"], Note())
                if noted.parts:
                    parts = self._parts(now["path"], new["partition"])
                    words += _differing(noted.parts, noted.parts, parts)
            words += _differing(("path", "audio_file", "audio"), was, now)
        return list(dict.fromkeys(words))

    def _parts(self, path: str, partition: str) -> Mapping[str, int]:
        """Checksums of the parts of an alignment file."""
        facts = self._facts(country_of(partition)).last(path) or {}
        if facts.get("parts"):
            return facts["parts"]
        read = alignment.read(path)
        return read.parts if read else {}


def _differing(names: Iterable[str], old: Mapping, new: Mapping) -> list[str]:
    return [name for name in names if old.get(name) != new.get(name)]
