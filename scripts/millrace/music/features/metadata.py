"""The JSONL of a Discogs-VI data set: video ids, and pointers to their features if it has any."""

from __future__ import annotations

import dataclasses
import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from millrace.common import jsonl
from millrace.common.errors import counted
from millrace.music.features.roots import Root

# The names that the published files, the original scripts and their forks give to one thing; of
# several in one record the last one here counts.
ID_NAMES = ("youtube_id", "ytid", "youtubeId")
HOP_NAMES = ("frame_hop_s", "hoplen_s", "hop_s")
DURATION_NAMES = ("duration_seconds", "duration_s")
_NAMES = {
    "h5_file": "h5",
    "h5_chunk": "h5",
    "h5_key": "key",
    "cqt_mm_path": "mm",
    "mm_path": "mm",
    **dict.fromkeys(HOP_NAMES, "hop"),
    "cqt_shape": "shape",
    "shape": "shape",
    **dict.fromkeys(DURATION_NAMES, "duration"),
}
_RANKS = {name: rank for rank, name in enumerate(_NAMES)}
_IS_RIGHT: dict[str, Callable[[Any], bool]] = {
    "h5": lambda value: isinstance(value, str),
    "key": lambda value: isinstance(value, str),
    "mm": lambda value: isinstance(value, str),
    "hop": lambda value: type(value) in (int, float) and 0.002 <= value <= 1,
    "shape": lambda value: (
        isinstance(value, list) and [*map(type, value)] == [int, int] and min(value) > 0
    ),
    "duration": lambda value: type(value) in (int, float) and 0 < value < float("inf"),
}
_NOTHING = {"h5": "h5_chunk {!r} is no HDF5 file below {}"}
_NOTHING["mm"] = "mm_path {!r} is no file in a folder of two characters below {}"
_VIDEO = re.compile(r"(?:[?&]v=|youtu\.be/|/(?:embed|live|shorts|v)/)([^&#?/]+)", re.IGNORECASE)


@dataclasses.dataclass(slots=True)
class Record:
    """What the JSONL says of a recording: `h5` file or path, `key` in it, `mm` path, hop, shape,
    duration (s)."""

    id: str
    h5: str | None = None
    key: str | None = None
    mm: str | None = None
    hop: float | None = None
    shape: list[int] | None = None
    duration: float | None = None


@dataclasses.dataclass
class Metadata:
    """Records with pointers, by id, and what was counted; `problems` are rows for rejects.jsonl."""

    path: str
    records: dict[str, Record] = dataclasses.field(default_factory=dict)
    ids: set[str] = dataclasses.field(default_factory=set)
    counts: Counter = dataclasses.field(default_factory=Counter)
    problems: list[dict] = dataclasses.field(default_factory=list)

    @property
    def note(self) -> str:
        """A sentence if the file has no ids at all: it has another form, or is that of the
        published ones which has none."""
        if self.ids:
            return ""
        if not self.counts["cliques"]:
            lines = counted(self.counts["lines"], "line")
            return f"{self.path}: {lines}, and not one record: a line is a track or a clique"
        return (
            f"{self.path}: {self.counts['cliques']} cliques, no video ids. The ids are those of the"
            " splits; Discogs-VI-YT-<date>.jsonl and"
            " Discogs-VI-<date>.jsonl.youtube_query_matched hold video ids"
        )

    def problem(self, line: int, reason: str, words: str) -> None:
        """Note what is wrong with a line."""
        self.counts[reason] += 1
        self.problems.append({"line": line, "reason": reason, "problem": words})


def first(record: Mapping[str, Any], names: Iterable[str]) -> Any:
    """The value under the first of the names that has one; null and "" count as absent."""
    for name in names:
        if (value := record.get(name)) is not None and value != "":
            return value
    return None


def video_ids(version: Mapping[str, Any]) -> list[str]:
    """The ids of a version, best match first: its own, then those of its videos and of its tracks'
    videos."""
    own = first(version, ID_NAMES)
    ids = [own] if isinstance(own, str) else []
    for place in [version, *_objects(version.get("tracks"))]:
        for video in _objects(place.get("youtube_video")):
            if match := _VIDEO.search(str(video.get("url"))):
                ids.append(match[1])
    return list(dict.fromkeys(ids))


def _objects(value: Any) -> list[dict]:
    """The objects of a list, or the one that stands in its place."""
    values = value if isinstance(value, list) else [value]
    return [each for each in values if isinstance(each, dict)]


def read_metadata(path: str | os.PathLike) -> Metadata:
    """Read a JSONL with a clique or a track a line, line by line; broken lines are counted and
    named.

    The later of two records of a track wins where both say something, as in the original script.
    """
    result = Metadata(os.fspath(path))
    for line, value, _ in jsonl.lines(path):
        result.counts["lines"] += 1
        if isinstance(value, jsonl.BadJson):
            result.problem(line, "broken_line", str(value))
        elif isinstance(value, dict) and isinstance(value.get("versions"), list):
            result.counts["cliques"] += 1
            for version in value["versions"]:
                ids = video_ids(version) if isinstance(version, dict) else []
                result.counts["versions" if ids else "versions_without_video"] += 1
                for number in ids:
                    _enter(result, line, number, version)
        elif isinstance(value, dict) and isinstance(number := first(value, ID_NAMES), str):
            _enter(result, line, number, value, once=True)
        else:
            names = ", ".join(ID_NAMES)
            result.problem(line, "no_id", f"neither versions nor one of {names} that is a text")
    return result


def pointers(fields: Mapping) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a record says, by the names of Record, and what of it is of another kind; null and "" do
    not count."""
    right: dict[str, Any] = {}
    wrong: dict[str, Any] = {}
    for alias in sorted(_NAMES.keys() & fields.keys(), key=_RANKS.__getitem__):
        name = _NAMES[alias]
        value = fields[alias]
        if value is not None and value != "":
            if name == "key" and isinstance(value, str):
                value = value.strip("/")
            (right if _IS_RIGHT[name](value) else wrong)[name] = value
    return right, wrong


def _enter(result: Metadata, line: int, number: str, fields: Mapping, once: bool = False) -> None:
    """Enter what a line says of a recording; values of another kind are named and ignored."""
    values, wrong = pointers(fields)
    for name, value in wrong.items():
        result.problem(line, f"bad_{name}", f"{number}: {name} cannot be {value!r}")
    if number in result.ids and once:
        result.problem(
            line,
            "duplicate_id",
            f"{number}: stands in an earlier line too; this one's values are taken",
        )
    result.ids.add(number)
    if record := result.records.get(number):
        for name, value in values.items():
            setattr(record, name, value)
    elif values:
        result.records[number] = Record(number, **values)


def place_records(
    records: Iterable[Record], roots: Mapping[str, Root]
) -> tuple[dict[str, list[Record]], list[dict]]:
    """Records by the file (HDF5) or folder (mm) that they point to; wrong pointers as rows for
    rejects.jsonl.

    Pointers become relative to their roots, "h5" and "mm"; what points to both stands in both
    places.
    """
    places: dict[str, list[Record]] = defaultdict(list)
    wrong: list[dict] = []
    folders = defaultdict(list)
    for folder in roots["mm"].places("mm") if "mm" in roots else ():
        folders[folder[-2:].casefold()].append(folder)

    def target(record: Record, kind: str, pointer: str | None) -> str | None:
        if kind not in roots or pointer is None:
            return None
        file = roots[kind].find(kind, pointer)
        if file is None:
            words = _NOTHING[kind].format(pointer, roots[kind].path)
            wrong.append({"id": record.id, "reason": "wrong_pointer", "problem": words})
        return file

    for record in records:
        file = target(record, "h5", record.h5)
        mm_file = target(record, "mm", record.mm)
        said = (record.hop, record.shape, record.duration)
        if file:
            places[file].append(Record(record.id, file, record.key, None, *said))
        # Without a pointer to an .mm these still count for the file of the usual name; without one
        # to an HDF5 file merging.apply_records compares them with the track, wherever it is.
        mm_folders = []
        if mm_file:
            mm_folders = [mm_file.rpartition("/")[0]]
        elif any(said):
            mm_folders = folders[record.id[:2].casefold()]
        for folder in mm_folders:
            places[folder].append(Record(record.id, None, record.key, mm_file, *said))
    return places, sorted(wrong, key=lambda row: (row["id"], row["problem"]))
