"""What stored values are, in HDF5 and .mm files alike: their type, the axis of time, the hop, and
whether a model can take them.

HDF5 files and .mm files are decided here alike, by what the file, its sidecar, the JSONL or the
config state. What nothing states is refused.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Container, Iterable, Iterator, Sequence

import numpy as np

from millrace.music.features.metadata import Record
from millrace.music.features.track import (
    FROM_CONFIG,
    FROM_FILE,
    FROM_JSONL,
    MM,
    PUBLISHED,
    Contract,
    Refused,
    Track,
)

PUBLISHED_HOP = 512 / 22050
"""Seconds per frame of the published .mm files, which do not state it."""


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


def owner_by_name(name: str) -> str:
    """Whose features of this name are; "" for a number, which may be a place in the file, though
    ids are numbers too."""
    return "" if name.isdecimal() else name


def check_owner(number: str, owner: str, listed: Container[str]) -> None:
    """Raise Refused if the JSONL points a recording to what is another's that it lists.

    If its lines have slipped, each recording would get the features of its neighbour.
    """
    if owner != number and owner in listed:
        words = f"the JSONL points {number} to features of {owner}: mend the JSONL"
        raise Refused("wrong_pointer", words)


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
        track.hop_from = FROM_FILE
    elif in_jsonl:
        track.hop = in_jsonl
        track.hop_from = FROM_JSONL
    elif is_published:
        track.hop = PUBLISHED_HOP
        track.hop_from = PUBLISHED
    else:
        track.hop = contract.hop
        track.hop_from = FROM_CONFIG


def checked_digest(blocks: Iterable[np.ndarray]) -> int:
    """The CRC-32 of values that `check_values` takes."""
    crc = 0

    def counted_in() -> Iterator[np.ndarray]:
        nonlocal crc
        for block in blocks:
            crc = zlib.crc32(np.ascontiguousarray(block).data, crc)
            yield _as_read(block)

    check_values(counted_in())
    return crc


def _as_read(block: np.ndarray) -> np.ndarray:
    """float64 as the float32 that training reads, in which it may be infinite or 0."""
    if block.dtype.itemsize <= 4:
        return block
    with np.errstate(over="ignore"):
        return block.astype(np.float32)


def check_values(blocks: Iterable[np.ndarray]) -> None:
    """Raise Refused if values, given in pieces, are no linear magnitudes: finite, none below 0, not
    all equal.

    Decibels, zeros and NaN would reach the model as scaled-up noise.
    """
    low = np.float64(math.inf)
    high = np.float64(-math.inf)
    for block in blocks:
        if block.size:
            # NaN stays what it is.
            low = np.minimum(low, block.min())
            high = np.maximum(high, block.max())

    span = f"values from {low:g} to {high:g}"
    if low > high:
        raise Refused("empty", "no frames")
    if not math.isfinite(low) or not math.isfinite(high):
        raise Refused("not_finite", f"NaN or infinite values ({span})")
    if low < 0:
        words = f"{span}: magnitudes are not below 0; of decibels they are 10 ** (dB / 20)"
        raise Refused("negative", words)
    if low == high:
        raise Refused("constant", f"all values are {high:g}")
