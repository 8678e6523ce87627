"""What makes a segment a reject: every reason, what it means, and the status of its row.

A segment that cannot become a row of the manifest is found by `segments.validate`, and one that
repeats another by `segments.resolve_duplicates`. A row that becomes no sample is found here, while
its audio is cut, or by its digest.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from millrace.speech.columns import AUDIO_LOAD, DUPLICATE, MISSING_SOURCE, OVER_CER, PROCESSING


class Reject(NamedTuple):
    """A reason, in the words of ledgers and for people.

    `status` is that of the row in the manifest; empty if there is no row. `by_choice`: by config or
    by rule of the data set; others are errors in the sources.
    """

    reason: str
    meaning: str
    status: str = ""
    by_choice: bool = False


# Of a status the first reason is the one that reports show.
REJECTS = (
    Reject("too_short", "shorter than min_duration", by_choice=True),
    Reject("too_long", "longer than max_duration", by_choice=True),
    Reject("duplicate_exact", "a repeat of the same segment", by_choice=True),
    Reject(
        "duplicate_key",
        "other texts for the same times; those with audio, of lower CER stay",
        by_choice=True,
    ),
    Reject("segment_not_an_object", "the segment is not a JSON object"),
    Reject("spellings_differ", "a field is there in both spellings, with two values"),
    Reject("time_missing", "start or end is missing or null"),
    Reject("time_not_a_number", "start or end is not a number"),
    Reject("time_not_finite", "start or end is NaN or infinite"),
    Reject("time_negative", "start or end is before the beginning"),
    Reject("time_reversed", "ends before it starts"),
    Reject("time_out_of_range", "lies beyond the end of the audio"),
    Reject("text_not_a_string", "a text is none, or holds a NUL character"),
    Reject("no_human_text", "the human text is missing, blank or invisible"),
    Reject("cer_over_limit", "character error rate above max_cer", OVER_CER, by_choice=True),
    Reject(
        "duplicate_across_splits",
        "validation or test holds the same audio",
        DUPLICATE,
        by_choice=True,
    ),
    Reject("audio_missing", "the audio file is missing", MISSING_SOURCE),
    Reject("audio_load", "the audio file cannot be opened or decoded", AUDIO_LOAD),
    Reject("audio_empty", "the audio file is empty", AUDIO_LOAD),
    Reject("audio_no_stream", "the file holds no audio", AUDIO_LOAD),
    Reject("processing", "the audio could not be cut or encoded at this place", PROCESSING),
    Reject("out_of_range", "lies beyond what can be decoded of the audio", PROCESSING),
)
CHOICES = frozenset(reject.reason for reject in REJECTS if reject.by_choice)
_STATUSES = {reject.reason: reject.status for reject in REJECTS}
_REASONS = {reject.status: reject.reason for reject in reversed(REJECTS) if reject.status}
# A longer segment is a mistyped time: it is held in memory while it is cut.
_LONGEST_SECONDS = 3600.0


def status_of(reason: str) -> str:
    """The status of a row whose audio gives no segment for this reason."""
    return _STATUSES.get(reason) or PROCESSING


def reason_of(status: str) -> str:
    """The reason in ledgers and reports of a status in a manifest, which may be a foreign one."""
    return _REASONS.get(status, status)


def row_problem(
    row: Mapping[str, Any], seen: Collection[str], max_cer: float
) -> tuple[str, str] | None:
    """Status and message of a row that is to become no sample; None if it is to become one.

    `seen` are the keys of rows before it.
    """
    source = row["source_audio_path"]
    cer = row["cer"]
    # A CER nobody knows (no text to compare with) passes only where the limit lets everything pass.
    is_unknown = cer is None or math.isnan(cer) or cer < 0
    if is_unknown and max_cer < 1:
        return OVER_CER, f"{source}: CER unknown, and the limit is {max_cer:g}"
    if not is_unknown and cer > max_cer:
        return OVER_CER, f"{source}: CER {cer:g} is over the limit of {max_cer:g}"
    if not source:
        return MISSING_SOURCE, f"no source_audio_path for {row['key']}"
    problem = _unusable(row, seen)
    return (PROCESSING, f"{source}: {problem}") if problem else None


def _unusable(row: Mapping[str, Any], seen: Collection[str]) -> str:
    """What is wrong with a row's span or key; "" if nothing is."""
    start = row["start_seconds"]
    end = row["end_seconds"]
    if not _is_span(start, end):
        return f"{start} to {end} s is not the span of a segment"
    if not row["key"]:
        return f"the segment at {start:g} s has no key"
    if row["key"] in seen:
        return f"the key {row['key']} stands in the manifest more than once"
    return ""


def _is_span(start: float | None, end: float | None) -> bool:
    if start is None or end is None:
        return False
    # Comparisons with NaN are false.
    return 0 <= start < end <= start + _LONGEST_SECONDS < math.inf
