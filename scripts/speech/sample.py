"""A segment as a WebDataset sample: the names of its two members, and its JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping
from urllib.parse import quote

import orjson

# Fields of the JSON member in their order, with the types to declare to `datasets`. Every sample has every one, and
# numbers are always floats: readers infer types from the first samples, and an int or a null there spoils the rest.
FIELD_TYPES: dict[str, str] = {
    "key": "string",
    "country": "string",
    "language": "string",
    "video_id": "string",
    "transcript_id": "string",
    "start_seconds": "float64",
    "end_seconds": "float64",
    "duration_seconds": "float64",
    "asr_transcript": "string",
    "human_transcript": "string",
    "cer": "float64",
    "wer": "float64",
    "original_transcript_start_idx": "float64",
    "original_transcript_end_idx": "float64",
    "sampling_rate": "float64",
    "split": "string",
    "subset_id": "float64",
}
# What stands for a number that is not known.
UNKNOWN = -1.0


def safe_key(key: str) -> str:
    """`key` as it may stand before the dot of a member's name: letters, digits, `_`, `-`, the rest as %XX of UTF-8.

    `urllib.parse.unquote` gives the key back. A dot would merge samples; two leading underscores hide a member from
    `datasets`, so the first of them is quoted too.
    """
    safe = quote(key, safe="").replace(".", "%2E").replace("~", "%7E")
    return "%5F" + safe[1:] if safe.startswith("__") else safe


def sample_json(row: Mapping, sampling_rate: int) -> bytes:
    """The JSON member of a manifest row: compact, UTF-8, no local paths; unknown numbers are -1.0, unknown texts ""."""
    content: dict[str, str | float] = {}
    for name, kind in FIELD_TYPES.items():
        value = sampling_rate if name == "sampling_rate" else row.get(name)
        content[name] = _number(value) if kind == "float64" else "" if value is None else str(value)
    return orjson.dumps(content)


def _number(value: float | None) -> float:
    return UNKNOWN if value is None or not math.isfinite(value) else float(value)
