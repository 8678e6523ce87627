"""A recording as a file: what it is by its content, what can be wrong with it, and samples as int16 mono."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass

import numpy as np

REASONS = ("audio_missing", "audio_empty", "audio_load", "audio_no_stream", "out_of_range")
_REMEDIES = {
    "audio_missing": "Put it there, or set path_map",
    "audio_empty": "Fetch it again",
    "audio_load": "If it plays elsewhere, convert it to FLAC; else fetch it again",
    "audio_no_stream": "Fetch it again, with its sound",
    "out_of_range": "Check that the alignment is of this recording, and that the recording is whole",
}
FULL_SCALE = 32768.0
_BEYOND_BELIEF = 1e9
# Fewer, of one in seven, show nothing about channels.
_ENOUGH_SAMPLES = 100


class AudioError(Exception):
    """A recording, or one span of it, that gives no audio. `reason` is one of REASONS; the text names the
    file."""

    def __init__(self, reason: str, path: str | os.PathLike, problem: str) -> None:
        if reason not in REASONS:
            raise ValueError(f"no such reason: {reason}")
        self.reason, self.path, self.problem = reason, os.fspath(path), problem
        super().__init__(reason, self.path, problem)

    def __str__(self) -> str:
        return f"{self.path}: {self.problem}. {_REMEDIES[self.reason]}"


@dataclass(frozen=True)
class AudioInfo:
    """Facts of a recording. `duration_seconds` is that of the timeline that `cut` uses; `warnings` are for
    people."""

    path: str
    container: str
    codec: str
    sample_rate: int
    channels: int
    duration_seconds: float
    lossless: bool
    warnings: tuple[str, ...] = ()


def head_of(path: str | os.PathLike, length: int = 64) -> bytes:
    """The first bytes of a recording; AudioError where there is no regular, readable, filled file."""
    try:
        facts = os.stat(path)
        if not stat.S_ISREG(facts.st_mode):
            kind = "a folder" if stat.S_ISDIR(facts.st_mode) else "not a regular file"
            raise AudioError("audio_load", path, f"is {kind}, not a recording")
        if facts.st_size == 0:
            raise AudioError("audio_empty", path, "the file is empty (0 bytes)")
        with open(path, "rb") as handle:
            return handle.read(length)
    except (FileNotFoundError, NotADirectoryError):
        raise AudioError("audio_missing", path, "no such file") from None
    except (OSError, ValueError) as error:  # ValueError: a path with a zero byte
        raise AudioError(
            "audio_load", path, f"cannot be read ({getattr(error, 'strerror', None) or error})"
        ) from None


def is_pcm_container(head: bytes) -> bool:
    """Whether the magic is that of WAV (RIFF, RIFX, RF64), W64, AIFF or CAF. The codec inside is another
    matter."""
    kind = head[8:12]
    return (
        (head[:4] in (b"RIFF", b"RIFX", b"RF64") and kind == b"WAVE")
        or (head[:4] == b"FORM" and kind in (b"AIFF", b"AIFC"))
        or head[:4] == b"caff"
        or (head[:4] == b"riff" and head[24:28] == b"wave")
    )


def mono(channels: list[np.ndarray], opposite: bool | None = None) -> np.ndarray:
    """Mean of the channels on the int16 scale; of two that cancel each other (one is wired wrongly) the first
    alone.

    `channels`: arrays (n,) of one dtype: uint8, int16, int32 (full scale 2^31), float32 or float64 (full
    scale 1.0). `opposite`: what `cancel` says of them, where that is known. Returns int16 where one int16
    channel came in, untouched; else float32, or float64 where float32 could not hold it.
    """
    kind = channels[0].dtype
    if kind == np.uint8:
        channels = [(channel.astype(np.int16) - 128) << 8 for channel in channels]
    if len(channels) == 1 and channels[0].dtype == np.int16:
        return channels[0]
    if cancel(channels) if opposite is None else opposite:
        return mono(channels[:1])
    if kind.kind == "f":
        with np.errstate(over="ignore", invalid="ignore"):
            total = channels[0] if len(channels) == 1 else sum(channels[1:], channels[0])
            result = total * total.dtype.type(FULL_SCALE / len(channels))
        # A damaged packet, or a float WAV, may hold NaN, infinity or 1e300: one would spoil all that it is
        # mixed with.
        if not max(result.max(), -result.min()) < _BEYOND_BELIEF:
            result = np.clip(np.nan_to_num(result, copy=False, nan=0.0), -FULL_SCALE, FULL_SCALE)
        return result
    if kind == np.int32:
        total = sum(channel.astype(np.float64) for channel in channels)
        return total * (1 / (65536 * len(channels)))
    total = channels[0].astype(np.int32)
    for channel in channels[1:]:
        total += channel
    return (
        total.astype(np.float32) * np.float32(1 / len(channels))
        if len(channels) > 1
        else total.astype(np.int16)
    )


def cancel(channels: list[np.ndarray]) -> bool:
    """Whether the sum of two channels is 30 dB below them: no two microphones, and no stereo mix, are so
    opposite.

    `channels` as for `mono`.
    """
    if len(channels) != 2:
        return False
    zero = 128 if channels[0].dtype == np.uint8 else 0
    one, other = (channel[::7].astype(np.float64) - zero for channel in channels)
    with np.errstate(over="ignore", invalid="ignore"):
        loudness = np.dot(one, one) + np.dot(other, other)
        both = one + other
        return bool(len(one) >= _ENOUGH_SAMPLES and loudness > 0 and np.dot(both, both) < 1e-3 * loudness)


def opposite_warning(path: str | os.PathLike) -> str:
    return (
        f"opposite_channels: the two of {os.path.basename(path)} cancel each other; the first alone is used"
    )


def to_int16(samples: np.ndarray) -> np.ndarray:
    """Round to the nearest and clip; `samples` on the int16 scale. int16 passes."""
    if samples.dtype == np.int16:
        return samples
    rounded = np.rint(samples)
    np.clip(rounded, -32768, 32767, out=rounded)
    return rounded.astype(np.int16)


def resampled(samples: np.ndarray, source_rate: int, target_rate: int) -> np.ndarray:
    """One segment at another rate: soxr HQ in float, rounded once. `samples` (n,) on the int16 scale; returns
    int16.

    In float because soxr's own int16 output is dithered with a seed taken from the clock.
    """
    if source_rate == target_rate or not len(samples):
        return to_int16(samples)
    import soxr

    return to_int16(
        soxr.resample(samples.astype(np.float32, copy=False), source_rate, target_rate, quality="HQ")
    )
