"""Segments as alignment files hold them: checked, turned into manifest rows with a key or counted
rejects; which of two with one key stays."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from millrace.common.errors import Unusable
from millrace.speech.audio.recording import OVERHANG_SECONDS
from millrace.speech.columns import MISSING_SOURCE
from millrace.speech.corpus import alignment


@dataclass(frozen=True)
class Limits:
    """Which segments a run wants: seconds, both ends included; and how error rates compare their
    texts."""

    min_duration: float
    max_duration: float
    normalise_text: bool = True


@dataclass
class Segment:
    """A valid segment. Times in seconds; `cer` is None if the alignment states none that can be
    used."""

    start: float
    end: float
    human_text: str
    asr_text: str
    cer: float | None
    start_idx: int | None
    end_idx: int | None
    number: int
    repairs: list[str] = field(default_factory=list)


def validate(raw: Any, number: int, limits: Limits, audio_seconds: float | None) -> Segment:
    """Check one segment as written. Raises Unusable with the reason.

    `number` is its place in the file, from 0; `audio_seconds` the length of the recording, None if
    unknown.
    """
    if not isinstance(raw, dict):
        raise Unusable(
            "segment_not_an_object", f"the segment is {alignment.kind_of(raw)}, not an object"
        )
    _check_spellings(raw)
    repairs: list[str] = []
    start, end = _span(raw, audio_seconds, repairs)
    human_text = _text(raw, "human_text")
    if not _is_visible(human_text):
        problem = "`human_text` is missing, null, blank or invisible"
        raise Unusable("no_human_text", problem)
    asr_text = _text(raw, "asr_text")
    if not asr_text.strip():
        repairs.append("asr_text_missing")
    _check_duration(end - start, limits)

    cer = _number(raw, "cer")
    return Segment(
        start=start,
        end=end,
        human_text=human_text,
        asr_text=asr_text,
        cer=cer if cer is not None and cer >= 0 else None,
        start_idx=_index(raw, "start_idx"),
        end_idx=_index(raw, "end_idx"),
        number=number,
        repairs=repairs,
    )


def _check_spellings(raw: dict) -> None:
    """Raise Unusable if both spellings of a field are there and say different things."""
    for first, second in alignment.differing(raw).values():
        problem = f"`{first}` and `{second}` are different: delete one"
        raise Unusable("spellings_differ", problem)


def _span(raw: dict, audio_seconds: float | None, repairs: list[str]) -> tuple[float, float]:
    """Start and end in seconds, within the audio."""
    start = _time(raw, "start")
    end = _time(raw, "end")
    if start < 0 or end < 0:
        raise Unusable("time_negative", f"start {start:g} s, end {end:g} s")
    if end <= start:
        raise Unusable("time_reversed", f"ends at {end:g} s, not after its start at {start:g} s")
    if audio_seconds is None:
        return start, end
    if start >= audio_seconds or end > audio_seconds + OVERHANG_SECONDS:
        problem = f"{start:g} to {end:g} s in audio of {audio_seconds:.3f} s"
        raise Unusable("time_out_of_range", problem)
    if end > audio_seconds:
        end = audio_seconds
        repairs.append("end_clipped")
    return start, end


def _check_duration(duration: float, limits: Limits) -> None:
    # Times are sums of floats: a nanosecond must not decide on a limit.
    if duration < limits.min_duration - 1e-6:
        raise Unusable("too_short", f"{duration:.3f} s, shorter than {limits.min_duration:g} s")
    if duration > limits.max_duration + 1e-6:
        raise Unusable("too_long", f"{duration:.3f} s, longer than {limits.max_duration:g} s")


def _time(raw: dict, name: str) -> float:
    value = alignment.field_of(raw, name)
    if value is None:
        raise Unusable("time_missing", f"`{name}` is missing or null")
    if isinstance(value, str):
        raise Unusable("time_not_a_number", f"`{name}` is the text {value[:40]!r}")
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Unusable("time_not_a_number", f"`{name}` is {alignment.kind_of(value)}")
    try:
        value = float(value)
    except OverflowError:
        value = math.inf
    if not math.isfinite(value):
        raise Unusable("time_not_finite", f"`{name}` is {value}")
    return value


def _text(raw: dict, name: str) -> str:
    value = alignment.field_of(raw, name)
    if value is None or value != value:  # tables write NaN where a text is missing
        return ""
    if not isinstance(value, str):
        raise Unusable("text_not_a_string", f"`{name}` is {alignment.kind_of(value)}")
    if "\0" in value:
        raise Unusable("text_not_a_string", f"`{name}` holds a NUL character")
    return value


def _is_visible(text: str) -> bool:
    """Whether a text has more than blanks, control characters and zero-width marks."""
    return any(unicodedata.category(char)[0] not in "ZC" for char in text)


def _number(raw: dict, name: str) -> float | None:
    """A field that a segment can do without: None if it is no finite number."""
    value = alignment.field_of(raw, name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _index(raw: dict, name: str) -> int | None:
    """The place of a word in its transcript; None if there is none that can be used."""
    index = _number(raw, name)
    # Beyond 2^53 floats are no exact whole numbers.
    if index is None or not index.is_integer() or abs(index) >= 2**53:
        return None
    return int(index)


def key_of(country: str, video_id: str, segment: Segment) -> str:
    """Country, video id, start and end in whole milliseconds, truncated as in the original
    script."""
    return f"{country}_{video_id}_{int(segment.start * 1000)}_{int(segment.end * 1000)}"


def resolve_duplicates(rows: Sequence[dict]) -> tuple[list[dict], list[tuple[dict, str, str]]]:
    """Keep one row per key: one with audio, then with the lowest CER, then the first.

    Returns the rows that stay, in their order, and (row, reason, detail) of the others:
    `duplicate_exact` if times and texts are the same too, else `duplicate_key` (a second transcript
    of the same span, or times that differ by less than a millisecond).
    """
    best: dict[str, dict] = {}
    for row in sorted(rows, key=lambda row: (row["status"] == MISSING_SOURCE, row["cer"])):
        best.setdefault(row["key"], row)
    compared = ("start_seconds", "end_seconds", "human_transcript", "asr_transcript")
    unique = []
    rejected = []
    for row in rows:
        if row is (winner := best[row["key"]]):
            unique.append(row)
            continue
        same = all(row[name] == winner[name] for name in compared)
        reason = "duplicate_exact" if same else "duplicate_key"
        rejected.append(
            (row, reason, f"same key {row['key']} as in transcript {winner['transcript_id']!r}")
        )
    return unique, rejected
