"""A recording as a file: why it may give no audio, and what to do then; how its channels become
mono, int16, and of another rate."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass

import numpy as np
import soxr

# Why there is no audio -> what to do about it.
REMEDIES = {
    "audio_missing": "Put it there, or set path_map",
    "audio_empty": "Fetch it again",
    "audio_load": "If it plays elsewhere, convert it to FLAC; else fetch it again",
    "audio_no_stream": "Fetch it again, with its sound",
    "out_of_range": (
        "Check that the alignment is of this recording, and that the recording is whole"
    ),
}
# Aligners round: a segment may end this much after its recording, and is cut there.
OVERHANG_SECONDS = 0.05
FULL_SCALE = 32768.0
MAX_AMPLITUDE = 1e9  # on the int16 scale: anything louder is damage, not sound


class AudioError(Exception):
    """A recording, or one span of it, that gives no audio; its text names the file and the remedy.

    `reason` is a key of REMEDIES; `remedy` replaces what is advised there.
    """

    def __init__(
        self, reason: str, path: str | os.PathLike, problem: str, remedy: str = ""
    ) -> None:
        self.reason = reason
        self.path = os.fspath(path)
        self.problem = problem
        self.remedy = remedy or REMEDIES[reason]
        super().__init__(reason, self.path, problem, self.remedy)

    def __str__(self) -> str:
        return f"{self.path}: {self.problem}. {self.remedy}"


@dataclass(frozen=True)
class AudioInfo:
    """Facts of a recording. `duration_seconds` is the length of the timeline that `cut` uses.

    Each of `warnings` begins with the word that ledgers count it under.
    """

    duration_seconds: float
    warnings: tuple[str, ...] = ()


def head_of(path: str | os.PathLike) -> bytes:
    """The first 64 bytes of a recording; AudioError if there is no regular, readable, filled
    file."""
    try:
        facts = os.stat(path)
        if not stat.S_ISREG(facts.st_mode):
            kind = "a folder" if stat.S_ISDIR(facts.st_mode) else "not a regular file"
            raise AudioError("audio_load", path, f"is {kind}, not a recording")
        if facts.st_size == 0:
            raise AudioError("audio_empty", path, "the file is empty (0 bytes)")
        with open(path, "rb") as handle:
            return handle.read(64)
    except (FileNotFoundError, NotADirectoryError):
        raise AudioError("audio_missing", path, "no such file") from None
    except OSError as error:
        problem = f"cannot be read ({error.strerror or error})"
        # Permissions are no part of what a dry run compares.
        remedy = "Mend that, and touch it, as an audio file is read again when its time changes"
        raise AudioError("audio_load", path, problem, remedy) from None
    except ValueError as error:  # a path with a zero byte
        raise AudioError("audio_load", path, f"cannot be read ({error})") from None


def mono(channels: list[np.ndarray], channels_cancel: bool) -> np.ndarray:
    """Mean of the channels on the int16 scale; if they cancel each other (see `decode.cancel`),
    the first alone.

    `channels`: arrays (n,) of one dtype: uint8, int16, int32 (full scale 2^31), float32 or float64
    (full scale 1.0). An int16 channel is returned as it is, all else as float32, or float64 if that
    is too small.
    """
    channels = channels[:1] if channels_cancel else channels
    kind = channels[0].dtype
    if kind == np.uint8:
        channels = [(channel.astype(np.int16) - 128) << 8 for channel in channels]
    if len(channels) == 1 and channels[0].dtype == np.int16:
        return channels[0]
    if kind.kind == "f":
        with np.errstate(over="ignore", invalid="ignore"):
            total = sum(channels[1:], channels[0])
            result = total * total.dtype.type(FULL_SCALE / len(channels))
        # A damaged packet, or a float WAV, may hold NaN, infinity or 1e300: resampling would spread
        # it.
        if not max(result.max(), -result.min()) < MAX_AMPLITUDE:
            numbers = np.nan_to_num(result, copy=False, nan=0.0)
            result = np.clip(numbers, -FULL_SCALE, FULL_SCALE)
        return result
    if kind == np.int32:
        # float64: the sum of two 32-bit samples fits in no int32, and float32 keeps 24 bits only.
        doubles = [channel.astype(np.float64) for channel in channels]
        return sum(doubles[1:], doubles[0]) * (1 / (65536 * len(channels)))
    wide = [channel.astype(np.int32) for channel in channels]
    total = sum(wide[1:], wide[0])
    return total.astype(np.float32) * np.float32(1 / len(channels))


def to_int16(samples: np.ndarray) -> np.ndarray:
    """Round to the nearest and clip `samples`, which are on the int16 scale; int16 is returned as
    it is."""
    if samples.dtype == np.int16:
        return samples
    rounded = np.rint(samples)
    np.clip(rounded, -32768, 32767, out=rounded)
    return rounded.astype(np.int16)


def resampled(samples: np.ndarray, source_rate: int, target_rate: int) -> np.ndarray:
    """One segment (n,) on the int16 scale as int16 at another rate: soxr HQ, rounded once."""
    if source_rate == target_rate or not len(samples):
        return to_int16(samples)
    # In float: soxr dithers its own int16 output with a seed taken from the clock.
    samples = samples.astype(np.float32, copy=False)
    return to_int16(soxr.resample(samples, source_rate, target_rate, quality="HQ"))
