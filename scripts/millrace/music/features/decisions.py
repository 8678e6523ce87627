"""What stored values are: their type, the axis of time, the hop, and whether a model can take them.

HDF5 files and .mm files are decided here alike, by what the file, its sidecar, the JSONL or the
config state. What nothing states is refused.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from millrace.music.features.metadata import Record
from millrace.music.features.track import MM, Contract, Refused, Track

PUBLISHED_HOP = 512 / 22050
"""Seconds per frame of the published .mm files, which do not state it."""

# By so much frames may last longer or shorter than a stated duration, which may be rounded to
# seconds.
_SLACK_SECONDS = 1.0
_SLACK_SHARE = 0.05

# Magnitudes of one recording span less (200 dB), but for few values; float16 read as float32 spans
# more, since each factor of 2 becomes one of 256.
_LARGEST_SPAN = 1e10
_FEW = 5  # percent


def time_axis(shape: Sequence[int], bins: int) -> int:
    """0 for stored (T, C), 1 for (C, T): the other axis has as many values as there are bins."""
    if bins not in shape:
        words = (
            f"no axis of {list(shape)} has {bins} bins, which the model takes: see contract.bins"
        )
        raise Refused("bins", words)
    if shape[0] == shape[1]:
        words = f"both axes have {bins} values: which is time? Cut the track"
        raise Refused("orientation_unknown", words)
    return 1 if shape[0] == bins else 0


def float_type(size: int, shape: Sequence[int], origin: str) -> str:
    """The type of values that take `size` bytes in a stated shape: `<f2` or `<f4`."""
    count = math.prod(shape)
    for dtype in ("<f2", "<f4"):
        if count * np.dtype(dtype).itemsize == size:
            return dtype
    words = f"{size} bytes are no float16 or float32 values of shape {list(shape)} ({origin})"
    raise Refused("wrong_shape", words)


def check_span(values: np.ndarray) -> None:
    """Raise Refused if float32 values span more than magnitudes do, as those of float16 bytes
    do."""
    positive = values[values > 0]
    if not len(positive):
        return
    least = np.percentile(positive, _FEW)
    most = positive.max()
    if least * _LARGEST_SPAN < most:
        words = f"as float32 the values span {least:.0e} to {most:.0e}: they are float16, or the"
        words += " JSONL has another track's shape. Put the shape into <id>.npy beside it"
        raise Refused("dtype_contradicts", words)


def decide_hop(
    track: Track, in_file: float | None, record: Record | None, contract: Contract
) -> None:
    """Set the seconds per frame: of the file, else of the JSONL, the published .mm files or the
    contract.

    Raises Refused if file and JSONL differ.
    """
    in_jsonl = record.hop if record else None
    if in_file and in_jsonl and abs(in_file - in_jsonl) > 1e-3 * in_file:
        words = f"hop {in_file:g} s in the file, {in_jsonl:g} in the JSONL"
        raise Refused("hop_contradicts", words)

    is_published = track.source == MM and track.dtype == "<f2" and track.time_axis == 0
    if in_file:
        track.hop = in_file
        track.facts["hop"] = "attribute"
    elif in_jsonl:
        track.hop = in_jsonl
        track.facts["hop"] = "jsonl"
    elif is_published:
        track.hop = PUBLISHED_HOP
        track.facts["hop"] = "inferred"
    else:
        track.hop = contract.hop
        track.facts["hop"] = "config"


def check_duration(track: Track, in_file: float | None, record: Record | None) -> None:
    """Raise Refused if the frames last longer or shorter than a duration (s) of the file or the
    JSONL."""
    in_jsonl = record.duration if record else None
    for duration, place in ((in_file, "file"), (in_jsonl, "JSONL")):
        if not duration or not 0 < duration < math.inf:
            continue

        lasting = track.frames * track.hop
        if abs(lasting - duration) > max(_SLACK_SECONDS, _SLACK_SHARE * duration):
            words = f"{track.frames} frames of {track.hop:g} s (hop by {track.facts['hop']}) last"
            words += f" {lasting:.1f} s, duration_s in the {place} says {duration:g}"
            words += ": state its hop_s, or mend duration_s"
            raise Refused("duration_contradicts", words)

        if track.facts["hop"] == "config":
            track.facts["hop"] = "duration"


def check_values(blocks: Iterable[np.ndarray]) -> list[str]:
    """Raise Refused if values, given in pieces, cannot be fed to the model; return what is
    remarkable about them.

    Linear magnitudes are expected: decibels, zeros and NaN would reach the model as scaled-up
    noise.
    """
    values = _ValueCounts()
    for block in blocks:
        values.add(block)

    low = values.low
    high = values.high
    total = values.total
    span = f"values from {low:g} to {high:g}"
    if not total:
        raise Refused("empty", "no frames")
    if values.not_finite:
        raise Refused("not_finite", f"{values.not_finite} of {total} values are NaN or infinite")
    if low <= -10 and -low > high:
        raise Refused("decibel", f"{span} are decibels; needed: 10 ** (dB / 20)")
    if values.negative > 0.01 * total:
        raise Refused("negative", f"{values.negative} of {total} values are below 0; {span}")
    if low == high == 0:
        raise Refused("zero", "all values are 0")
    if low == high:
        raise Refused("constant", f"all values are {high:g}")
    # Silence, or what an extraction that was stopped has never written.
    if values.zeros > 0.5 * total:
        return ["mostly_zero"]
    return []


@dataclass
class _ValueCounts:
    """Numbers and span of a track's values."""

    low: float = math.inf
    high: float = -math.inf
    total: int = 0
    negative: int = 0
    not_finite: int = 0
    zeros: int = 0

    def add(self, block: np.ndarray) -> None:
        """Count a piece; one with a value that is not finite has no part in the span."""
        self.total += block.size
        if not block.size:
            return
        self.zeros += block.size - int(np.count_nonzero(block))
        least = float(block.min())
        most = float(block.max())
        if not math.isfinite(least) or not math.isfinite(most):
            self.not_finite += int((~np.isfinite(block)).sum())
            return
        self.low = min(self.low, least)
        self.high = max(self.high, most)
        if least < 0:
            self.negative += int((block < 0).sum())
