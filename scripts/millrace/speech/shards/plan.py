"""Which segments are written, in which order, and when a shard is full: a function of the manifest
part and the options.

A shard is closed when the next segment might not fit: by its real bytes so far, and by an upper
bound of the next segment's, known before it is decoded. All but the last are nearly full; none
exceeds the limit, but one of a single segment that does so alone.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import orjson

from millrace.common.errors import MillraceError
from millrace.speech.columns import PENDING
from millrace.speech.manifest.rejects import row_problem
from millrace.speech.names import SHARD_NUMBERS, Partition, safe_key
from millrace.speech.shards.tar_writer import RECORD, member_bytes

# Part of every digest: raise it when the same input is to give other bytes.
# Versions of encoders are no part of it, so that an updated library does not rebuild a corpus.
FORMAT = "millrace-speech-shard-1"


@dataclass(frozen=True)
class ShardOptions:
    """What a user chooses: Hz, a format of audio.cut, the highest CER, GB (10^9 bytes) a shard."""

    sampling_rate: int = 16_000
    audio_format: str = "flac"
    max_cer: float = 0.3
    max_shard_size_gb: float = 1.0


@dataclass(frozen=True)
class PlannedSegment:
    """A segment to be written: `position` in the manifest part, its row, its member stem and its
    JSON."""

    position: int
    row: dict
    stem: str
    text: bytes
    bytes_at_most: int

    @property
    def source(self) -> str:
        """Path of its recording's audio."""
        return self.row["source_audio_path"]

    @property
    def span(self) -> tuple[float, float]:
        """Start and end in seconds."""
        return self.row["start_seconds"], self.row["end_seconds"]

    @property
    def hours(self) -> float:
        """Length in hours."""
        return (self.row["end_seconds"] - self.row["start_seconds"]) / 3600


@dataclass
class Plan:
    """The segments of a partition; `settled`: (status, message) of rows that need no audio, by
    position."""

    partition: Partition
    options: ShardOptions
    rows: Sequence[dict]
    segments: list[PlannedSegment] = field(default_factory=list)
    settled: dict[int, tuple[str, str]] = field(default_factory=dict)

    def fits(self, used: int, size: int) -> bool:
        """Whether `size` more bytes fit into a shard that holds `used`; room is left for the tar's
        end."""
        return not used or used + size <= int(self.options.max_shard_size_gb * 1e9) - 2 * RECORD

    def shard(self, number: int) -> str:
        """The path of the partition's shard `number`, from 0. Raises MillraceError for the
        101st."""
        if number >= SHARD_NUMBERS:
            limit = f"{self.options.max_shard_size_gb:g} GB"
            raise MillraceError(
                f"more than {SHARD_NUMBERS} shards of {limit} are needed",
                f"partition {self.partition}",
                "Raise max_shard_size_gb, or lower speech.partition_hours",
            )
        return self.partition.shard(self.partition.first + number)

    def digest(self, segments: Sequence[PlannedSegment]) -> str:
        """A digest of all that decides on the bytes of a shard of these segments."""
        options = self.options
        digest = hashlib.sha256(orjson.dumps([FORMAT, options.sampling_rate, options.audio_format]))
        for segment in segments:
            # The JSON writes NaN, infinity and None all as -1.0; the index keeps them apart.
            facts = (
                segment.stem,
                segment.span,
                segment.row["cer"],
                segment.row["wer"],
                segment.source,
            )
            for part in (repr(facts).encode(), segment.text):
                digest.update(b"%d:" % len(part) + part)
        sources = sorted({segment.source for segment in segments})
        digest.update(orjson.dumps([(path, self._stats[path]) for path in sources]))
        return digest.hexdigest()

    @cached_property
    def _stats(self) -> dict[str, tuple[int, int] | None]:
        return {path: _stat(path) for path in {segment.source for segment in self.segments}}


def plan_partition(partition: Partition, rows: Sequence[dict], options: ShardOptions) -> Plan:
    """Plan what is written of a partition's manifest rows; rows that are not pending keep their
    status."""
    plan = Plan(partition, options, rows)
    plan.segments = segments = _segments(plan)

    # Recordings in the manifest's order, segments in order of time: generate_manifest writes them
    # so already.
    first: dict[str, int] = {}
    for segment in segments:
        first.setdefault(segment.row["video_id"], segment.position)
    segments.sort(
        key=lambda segment: (first[segment.row["video_id"]], *segment.span, segment.position)
    )
    return plan


def audio_bytes(seconds: float, sampling_rate: int, audio_format: str) -> int:
    """An upper bound of what millrace.speech.audio.encode makes of `seconds` of audio, head
    included."""
    # FLAC stores noise as it is, with some bytes a frame.
    bytes_per_second = 2 * sampling_rate * 65 / 64
    if audio_format == "opus":
        # A variable rate: up to 1.7 times the nominal one on clicks, so twice is taken.
        bytes_per_second = 8_000 if sampling_rate <= 16_000 else 16_000
    elif audio_format == "mp3":
        bytes_per_second = 8_800 if sampling_rate <= 24_000 else 13_200
    return math.ceil(seconds * bytes_per_second) + 4096


def _segments(plan: Plan) -> list[PlannedSegment]:
    """The rows to be written; what is over the CER limit, or cannot be a member, is settled
    here."""
    segments: list[PlannedSegment] = []
    seen: set[str] = set()
    for position, row in enumerate(plan.rows):
        if row["status"] != PENDING:
            plan.settled[position] = row["status"], row["error_message"] or ""
        elif problem := row_problem(row, seen, plan.options.max_cer):
            plan.settled[position] = problem
        else:
            seen.add(row["key"])
            segments.append(_planned(position, row, plan.options))
    return segments


def _planned(position: int, row: dict, options: ShardOptions) -> PlannedSegment:
    """The segment of a row, with the most bytes that its two members can take."""
    stem = safe_key(row["key"])
    text = sample_json(row, options.sampling_rate)
    seconds = row["end_seconds"] - row["start_seconds"]
    audio = audio_bytes(seconds, options.sampling_rate, options.audio_format)

    # A name of more than 100 bytes takes further blocks, so the extension counts.
    audio_name = len(f"{stem}.{options.audio_format}")
    text_name = len(f"{stem}.json")
    at_most = member_bytes(audio_name, audio) + member_bytes(text_name, len(text))
    return PlannedSegment(position, row, stem, text, at_most)


def _stat(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return status.st_size, status.st_mtime_ns


# Fields of the JSON member in their order, with the types to declare to `datasets`. Every sample
# has all, and numbers are always floats: readers infer types from the first samples; an int or a
# null spoils the rest.
FIELD_TYPES: dict[str, str] = {
    **dict.fromkeys(("key", "country", "language", "video_id", "transcript_id"), "string"),
    **dict.fromkeys(("start_seconds", "end_seconds", "duration_seconds"), "float64"),
    **dict.fromkeys(("asr_transcript", "human_transcript"), "string"),
    **dict.fromkeys(("cer", "wer"), "float64"),
    **dict.fromkeys(("original_transcript_start_idx", "original_transcript_end_idx"), "float64"),
    **{"sampling_rate": "float64", "split": "string", "subset_id": "float64"},
}
# What stands for a number that is not known.
UNKNOWN = -1.0


def sample_json(row: Mapping, sampling_rate: int) -> bytes:
    """The JSON member of a manifest row: compact UTF-8 without local paths; -1.0 and "" if
    unknown."""
    content: dict[str, str | float] = {}
    for name, kind in FIELD_TYPES.items():
        value = sampling_rate if name == "sampling_rate" else row.get(name)
        if kind == "string":
            content[name] = "" if value is None else str(value)
        else:
            content[name] = UNKNOWN if value is None or not math.isfinite(value) else float(value)
    return orjson.dumps(content)
