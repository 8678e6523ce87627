"""A sample of a split: where its bytes lie, which endings are sound or pictures, and how others
call its text, duration and recording."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

# Endings of files with sound, that of videos too, or with a picture.
MEDIA = (
    ".wav",
    ".flac",
    ".mp3",
    ".ogg",
    ".oga",
    ".opus",
    ".m4a",
    ".aac",
    ".amr",
    ".wma",
    ".aiff",
    ".aif",
    ".caf",
    ".w64",
    ".mp4",
    ".mkv",
    ".mka",
    ".webm",
    ".mov",
    ".jpg",
    ".jpeg",
    ".png",
    ".ppm",
    ".bmp",
    ".pgm",
    ".tif",
    ".tiff",
    ".webp",
)
# How columns and JSON of others call what is said about a sample; the first one that is there
# counts.
TEXTS = ("transcript", "human_transcript", "text", "sentence", "transcription", "normalized_text")
DURATIONS = ("duration", "duration_s", "duration_seconds", "audio_length")
RECORDINGS = ("recording_id", "recording", "rec_id", "video_id", "youtube_id", "session_id")


class Place(NamedTuple):
    """Bytes in a file: `size` of them from `offset` on, or (None) all. `content` if they are at
    hand."""

    path: str
    offset: int = 0
    size: int | None = None
    content: bytes | None = None

    def read(self) -> bytes:
        """The bytes. Raises OSError."""
        if self.content is not None:
            return self.content
        with open(self.path, "rb") as file:
            file.seek(self.offset)
            return file.read(-1 if self.size is None else self.size)


class Sample(NamedTuple):
    """A sample, by the name that its source gives it.

    `place` is None if only words about it are known. Of a segment of a recording, `start` and
    `seconds` say what part of the sound it is; `seconds` may be known of a whole file too.
    """

    name: str
    place: Place | None
    start: float | None = None
    seconds: float | None = None
    transcript: str = ""
    recording: str = ""


def described(sample: Sample, fields: Mapping[str, Any]) -> Sample:
    """The sample with what columns, or JSON, say about it."""
    seconds = first(fields, DURATIONS)
    recording = first(fields, RECORDINGS)
    if isinstance(recording, float) and recording.is_integer():
        recording = int(recording)  # a column of whole numbers, some of which are missing
    return sample._replace(
        transcript=str(first(fields, TEXTS) or sample.transcript),
        recording=sample.recording if recording is None else str(recording),
        seconds=float(seconds) if isinstance(seconds, int | float) else sample.seconds,
    )


def first(fields: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    """The first of these fields that holds something, which NaN is not; None without one."""
    held = (fields.get(name) for name in names)
    return next((value for value in held if not (value is None or _is_nan(value))), None)


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)
