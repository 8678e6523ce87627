"""The JSONL of a Discogs-VI data set: under which names it states video ids, hops and pointers to
features, and which of its lines are wrong."""

from __future__ import annotations

import dataclasses
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from millrace.common import jsonl
from millrace.music.features.roots import Root

# The names that the published files, the original scripts and their forks give to one thing; of
# several in one record the last one here counts.
ID_NAMES = ("youtube_id", "ytid", "youtubeId")
HOP_NAMES = ("frame_hop_s", "hoplen_s", "hop_s")
_NAMES = {
    "h5_file": "h5",
    "h5_chunk": "h5",
    "h5_key": "key",
    "cqt_mm_path": "mm",
    "mm_path": "mm",
    **dict.fromkeys(HOP_NAMES, "hop"),
    "cqt_shape": "shape",
    "shape": "shape",
}
_NOTHING = {
    "h5": "h5_chunk {!r} is no single HDF5 file below {}",
    "mm": "mm_path {!r} is no file in a folder of two characters below {}",
}
_VIDEO = re.compile(r"(?:[?&]v=|youtu\.be/|/(?:embed|live|shorts|v)/)([^&#?/]+)", re.IGNORECASE)


@dataclasses.dataclass(slots=True)
class Record:
    """What the JSONL says of a recording: `h5` file or path, `key` in it, `mm` path, hop (s),
    shape."""

    id: str
    h5: str | None = None
    key: str | None = None
    mm: str | None = None
    hop: float | None = None
    shape: list[int] | None = None


@dataclasses.dataclass
class Metadata:
    """Records with pointers, by id, and all ids; `problems` are rows for rejects.jsonl."""

    path: str
    records: dict[str, Record] = dataclasses.field(default_factory=dict)
    ids: set[str] = dataclasses.field(default_factory=set)
    problems: list[dict] = dataclasses.field(default_factory=list)

    @property
    def note(self) -> str:
        """A sentence if the file has no ids at all, as one of the published ones."""
        if self.ids or not self.path:
            return ""
        return f"{self.path}: no video ids; Discogs-VI-YT-<date>.jsonl holds some"

    def problem(self, line: int, reason: str, words: str) -> None:
        """Note what is wrong with a line."""
        self.problems.append({"line": line, "reason": reason, "problem": words})

    def enter(self, line: int, number: str, fields: Mapping) -> None:
        """Enter what a line says of a recording; values of another kind are named and ignored."""
        self.ids.add(number)
        for name, value in pointers(fields):
            if _is_right(name, value):
                record = self.records.setdefault(number, Record(number))
                setattr(record, name, value.strip("/") if name == "key" else value)
            else:
                self.problem(line, f"bad_{name}", f"{number}: {name} cannot be {value!r}")


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
    named. A path that is empty has no records.

    The later of two records of a track wins where both say something, as in the original script.
    """
    result = Metadata(os.fspath(path))
    if not path:
        return result
    for line, value, _ in jsonl.lines(path):
        fields = value if isinstance(value, dict) else {}
        number = first(fields, ID_NAMES)
        if isinstance(value, jsonl.BadJson):
            result.problem(line, "broken_line", str(value))
        elif isinstance(fields.get("versions"), list):
            for version in _objects(fields["versions"]):
                for video in video_ids(version):
                    result.enter(line, video, version)
        elif not isinstance(number, str):
            names = ", ".join(ID_NAMES)
            result.problem(line, "no_id", f"neither versions nor one of {names} that is a text")
        else:
            if number in result.ids:
                words = f"{number}: stands in an earlier line too; this one's values are taken"
                result.problem(line, "duplicate_id", words)
            result.enter(line, number, fields)
    return result


def pointers(fields: Mapping) -> Iterator[tuple[str, Any]]:
    """What a record says, by the names of Record, the name that counts last; null and "" do not
    count."""
    for alias, name in _NAMES.items():
        value = fields.get(alias)
        if value is not None and value != "":
            yield name, value


def _is_right(name: str, value: Any) -> bool:
    """Whether a value is of the kind that its name wants."""
    if name == "hop":
        return type(value) in (int, float) and 0.002 <= value <= 1
    if name == "shape":
        is_pair = isinstance(value, list) and [type(side) for side in value] == [int, int]
        return is_pair and min(value) > 0
    return isinstance(value, str)


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
        if file:
            places[file].append(dataclasses.replace(record, h5=file, mm=None))
        # Without a pointer to an .mm what is said still counts for the file of the usual name; in
        # any other file merging.apply_records gives the hop to the track.
        mm_folders = []
        if mm_file:
            mm_folders = [os.path.dirname(mm_file)]
        elif record.hop or record.shape:
            mm_folders = folders[record.id[:2].casefold()]
        for folder in mm_folders:
            places[folder].append(dataclasses.replace(record, h5=None, mm=mm_file))
    return places, sorted(wrong, key=lambda row: (row["id"], row["problem"]))
