"""A country's folder on disk: which files are alignment files and make up its recordings, and why
others cannot be used."""

from __future__ import annotations

import os
import stat as stat_module
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from millrace.common import jsonl
from millrace.common.errors import MillraceError
from millrace.common.workflow import partitions
from millrace.speech.corpus import alignment, languages
from millrace.speech.corpus.media import MediaFolder, is_utf8
from millrace.speech.corpus.roots import AudioOutside
from millrace.speech.names import safe_name

# Where a country's alignment files lie; and what stands in their listing for a folder.
ALIGNED = "Alignment/alignment_output"
FOLDER = ["a folder"]
# Files that are left out without being a defect of the corpus.
FILE_CHOICES = frozenset(["not_an_alignment_name"])


@dataclass(slots=True)
class Recording:
    """One recording: its transcripts, and its audio as it lies on disk."""

    country: str
    video_id: str
    hours: float = 0.0
    transcripts: list[dict] = field(default_factory=list)

    @property
    def name(self) -> str:
        """By which the assignment file knows it."""
        return f"{self.country}/{self.video_id}"


@dataclass
class Country:
    """A country folder: its recordings by video id, and the files that could not be used.

    `state` tells whether any of its files has changed, `outside` has the signatures of files
    elsewhere.
    """

    name: str
    language: str
    recordings: dict[str, Recording] = field(default_factory=dict)
    files: int = 0
    rejected: list[dict] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    state: str = ""
    outside: dict[str, list[int] | None] = field(default_factory=dict)


def folders(root: Path, wanted: Collection[str]) -> list[Path]:
    """The country folders under `root`, or those named in `wanted`. MillraceError if one is
    missing."""
    # isdir, as an entry's is_dir raises on a link that leads to itself.
    visible = [name for name in os.listdir(root) if not name.startswith(".")]
    names = [name for name in sorted(visible) if os.path.isdir(root / name)]
    if missing := sorted(set(wanted) - set(names)):
        raise MillraceError(
            f"speech.countries names {', '.join(missing)}: no such folder",
            str(root),
            f"Folders found: {', '.join(names) or 'none'}",
        )
    return [root / name for name in names if not wanted or name in wanted]


def read(
    folder: Path,
    listing: list[list],
    media: MediaFolder,
    language_map: Mapping,
    known: partitions.DigestCache,
) -> Country:
    """The country in `folder`, with these alignment files and media; `known` caches what the former
    say.

    `language_map` maps countries to languages.
    """
    country = Country(shown(folder.name), languages.of(folder.name, language_map))
    if country.language == "und":
        country.notes.append("language_unknown")
    aligned = str(folder / ALIGNED)
    for name, *state in listing:
        if not name.lower().endswith(".json"):
            continue
        country.files += 1
        path = f"{aligned}/{name}"
        problem = _name_problem(name, path, state)
        if problem is None:
            problem = _add_alignment(country, media, name, partitions.Stat(path, *state), known)
        if problem:
            reason, detail = problem
            country.rejected.append({"file": shown(name), "reason": reason, "detail": detail})
    if not country.files:
        country.notes.append("no_alignment_files")
    return country


def _name_problem(name: str, path: str, state: list) -> tuple[str, str] | None:
    """Why a file is no alignment file, by its name and kind: a reason and a detail."""
    if not name.lower().endswith(alignment.SUFFIX):
        return "not_an_alignment_name", f"the name does not end in {alignment.SUFFIX}"
    if not is_utf8(path):
        detail = "its name, or that of a folder it lies in, is not UTF-8; rename it"
        return "name_not_utf8", detail
    if state == FOLDER:
        return "json_unreadable", "is a folder"
    if len(state) < 3:
        return "json_unreadable", state[0]
    return None


def _add_alignment(
    country: Country,
    media: MediaFolder,
    name: str,
    stat: partitions.Stat,
    known: partitions.DigestCache,
) -> tuple[str, str] | None:
    """Add an alignment file to its recording; or say with reason and detail why not."""
    try:
        facts = known.get(stat, _facts)
    except OSError as error:
        return "json_unreadable", error.strerror or str(error)
    if "reason" in facts:
        return facts["reason"], facts["detail"]
    file_stem = name[: -len(alignment.SUFFIX)]
    audio_file = facts["audio_file"]
    video_id = alignment.stem(audio_file)
    try:
        audio = media.find(audio_file)
    except AudioOutside as outside:
        return "audio_outside", shown(str(outside))
    recording = country.recordings.setdefault(video_id, Recording(country.name, video_id))
    recording.hours = max(recording.hours, facts["hours"])
    recording.transcripts.append(
        {
            "transcript_id": alignment.transcript_id(file_stem, video_id),
            "path": stat.path,
            "digests": facts["digests"],
            "audio_file": audio_file,
            "audio": audio.as_dict() if audio else None,
        }
    )
    return None


def list_names(folder: Path) -> list[str]:
    """What lies in a country's alignment folder, if it has one."""
    try:
        return [name for name in os.listdir(folder / ALIGNED) if not name.startswith(".")]
    except (FileNotFoundError, NotADirectoryError):
        return []


def list_alignments(folder: Path) -> list[list]:
    """Name, size, mtime and inode of all in a country's alignment folder, sorted.

    Of what is no file it is the name, and FOLDER or what is wrong with it.
    """
    listing: list[list] = []
    for name in sorted(list_names(folder)):
        state: list
        try:
            status = os.stat(f"{folder}/{ALIGNED}/{name}")
            state = FOLDER if stat_module.S_ISDIR(status.st_mode) else ["is not a regular file"]
            if stat_module.S_ISREG(status.st_mode):
                state = [status.st_size, status.st_mtime_ns, status.st_ino]
        except OSError as error:
            state = [error.strerror or str(error)]
        listing.append([name, *state])
    return listing


def _facts(path: str) -> dict[str, Any]:
    """What the sync needs of an alignment file, or the `reason` and `detail` of its reject."""
    try:
        parsed = alignment.parse(Path(path).read_bytes())
    except jsonl.BadJson as bad:
        return {"reason": bad.reason, "detail": str(bad)}
    return {
        "audio_file": parsed.audio_file,
        "digests": parsed.digests,
        "hours": round(parsed.hours, 6),
    }


def id_of(folder: Path) -> str:
    """What names a country's files and jobs."""
    return safe_name(shown(folder.name))


def shown(name: str) -> str:
    return name.encode("utf-8", "backslashreplace").decode()
