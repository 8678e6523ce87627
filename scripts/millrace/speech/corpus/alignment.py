"""Alignment files: one JSON per transcript of a recording, in the two spellings found in the wild;
which are refused, which ids and hours they state."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from millrace.common import jsonl

SUFFIX = "_aligned.json"
# The spellings of each field of a segment; the first that has a value counts.
FIELDS = {
    "start": ("start", "start_seconds"),
    "end": ("end", "end_seconds"),
    "human_text": ("human_text", "human_transcript"),
    "asr_text": ("asr_text", "asr_transcript"),
    "cer": ("cer",),
    "start_idx": ("start_idx", "original_transcript_start_idx"),
    "end_idx": ("end_idx", "original_transcript_end_idx"),
}
_TWICE_SPELLED = {name: spellings for name, spellings in FIELDS.items() if len(spellings) > 1}
# What a user calls the fields, by where they stand in FIELDS.
PARTS = {
    "times": (0, 2),
    "text": (2, 4),
    "CER": (4, 5),
    "words": (5, 7),
}
# A later end, in seconds, is a mistyped one: a recording of more than a day would outweigh others.
_LATEST_END = 86_400.0
_MEDIA = re.compile(r"\.(?:[A-Za-z][A-Za-z0-9]{1,4}|3gp|3g2)$")


@dataclass
class Alignment:
    """The content of one alignment file.

    `segments` are as written (validated later, one by one); `repairs` names what was mended to read
    the file.
    """

    audio_file: str
    segments: list[Any]
    repairs: list[str] = field(default_factory=list)

    @property
    def digests(self) -> dict[str, str]:
        """Digests of what the speech lane reads, by what a user calls it: key order, white space
        and other fields do not count."""
        rows = [_used(segment) for segment in self.segments]
        # What is no object stands in every part.
        rows = [row if isinstance(row, list) else [row] * len(FIELDS) for row in rows]
        digests = {}
        for part, (start, end) in PARTS.items():
            digests[part] = jsonl.digest([row[start:end] for row in rows])
        return digests

    @property
    def hours(self) -> float:
        """Where the last segment ends, in hours: a cheap and close measure of the recording's
        length."""
        ends = [value for segment in self.segments if (value := _seconds(segment)) is not None]
        return max(ends, default=0.0) / 3600.0


def parse(raw: bytes) -> Alignment:
    """Parse an alignment file. Raises jsonl.BadJson with a reason if nothing in it can be used."""
    value, repairs = jsonl.loads(raw)
    if not isinstance(value, dict):
        problem = f"{kind_of(value)} stands on top, not an object with segments"
        raise jsonl.BadJson("json_not_an_object", problem)
    segments = value.get("segments")
    if segments is None:
        raise jsonl.BadJson("no_segments", "the object has no `segments`")
    if not isinstance(segments, list):
        raise jsonl.BadJson("no_segments", f"`segments` is {kind_of(segments)}, not a list")
    if not segments:
        raise jsonl.BadJson("no_segments", "`segments` is an empty list")
    audio_file = value.get("audio_file")
    audio_file = audio_file.strip() if isinstance(audio_file, str) else ""
    if stem(audio_file) in ("", "..") or "\0" in audio_file:
        problem = "the object has no `audio_file` with the path of its audio; write it there"
        raise jsonl.BadJson("no_audio_file", problem)
    return Alignment(audio_file, segments, repairs)


def kind_of(value: Any) -> str:
    """What a JSON value is, in the words of a message."""
    names = {
        type(None): "null",
        list: "a list",
        dict: "an object",
        str: "a string",
        bool: "true or false",
    }
    return names.get(type(value), "a number")


def field_of(segment: dict, name: str) -> Any:
    """The value of a field in whichever spelling the segment uses; None if it is missing or
    null."""
    for spelling in FIELDS[name]:
        if segment.get(spelling) is not None:
            return segment[spelling]
    return None


def differing(segment: dict) -> dict[str, tuple[str, ...]]:
    """The fields of which the segment has both spellings with two values, and these spellings."""
    fields = {}
    for name, spellings in _TWICE_SPELLED.items():
        first, second = map(segment.get, spellings)
        if first is not None and second is not None and first != second:
            fields[name] = spellings
    return fields


def stem(audio_file: str) -> str:
    """The video id: the file name of `audio_file` (POSIX or Windows path) without its media
    suffix."""
    path = audio_file.replace("\\", "/").rstrip("/")
    name = path.rpartition("/")[2]
    name = PurePosixPath(path).name if name == "." else name
    return _MEDIA.sub("", name) or name


def transcript_id(file_stem: str, video_id: str) -> str:
    """What follows the video id in the name of an alignment file (without `_aligned.json`), or all
    of it."""
    if file_stem == video_id:
        return ""
    if file_stem.startswith(f"{video_id}_"):
        return file_stem[len(video_id) + 1 :]
    return file_stem


def _used(segment: Any) -> Any:
    if not isinstance(segment, dict):
        return _jsonable(segment)
    values = {name: field_of(segment, name) for name in FIELDS}
    # The segment is rejected until one of the two is mended.
    for name, spellings in differing(segment).items():
        values[name] = [segment[spelling] for spelling in spellings]
    return list(map(_jsonable, values.values()))


def _jsonable(value: Any) -> Any:
    # NaN and null read alike in JSON, and huge integers have no place there; repr() tells them
    # apart.
    if value is None or isinstance(value, str | bool):
        return value
    return repr(value)


def _seconds(segment: Any) -> float | None:
    value = field_of(segment, "end") if isinstance(segment, dict) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 < value < _LATEST_END else None
