"""PCM recordings (WAV, RF64, W64, AIFF, CAF) through libsndfile: any span in one seek and one read;
which are refused, and when sizes or values are wrong."""

from __future__ import annotations

import os
import re

import numpy as np
import soundfile

from millrace.common.loading.decode import LOUDEST, cancel
from millrace.speech.audio.recording import (
    AudioError,
    AudioInfo,
    head_of,
    mono,
)

# WAV, AIFF, CAF and W64, whatever the codec inside.
_PCM_CONTAINERS = re.compile(rb"(?s)(RIFF|RIFX|RF64).{4}WAVE|FORM.{4}AIF[FC]|caff|riff.{20}wave")
# Samples are read as the narrowest type that holds them: libsndfile would cut 24 bits to 16
# unrounded.
_READ_AS = dict.fromkeys(("PCM_S8", "PCM_U8", "PCM_16", "ULAW", "ALAW"), "int16")
_READ_AS |= {
    "PCM_24": "int32",
    "PCM_32": "int32",
    "FLOAT": "float32",
    "DOUBLE": "float64",
}
_LARGEST_RIFF = 0xFFFFFFFF
# What programs that write to a pipe state for a size that they don't know yet.
_UNKNOWN_SIZES = (0, 0x7FFFFFFF, 0x7FFFF000, 0x7FFFF024, 0x80000000, 0xFFFFFFFE, 0xFFFFFFFF)


def _chunks(path: str | os.PathLike) -> tuple[list[tuple[bytes, int, int]], int]:
    """Name, position of the body and stated size of a RIFF file's chunks; and where their chain
    ends."""
    chunks: list[tuple[bytes, int, int]] = []
    at = 12
    with open(path, "rb") as handle:
        while True:
            handle.seek(at)
            head = handle.read(8)
            name = head[:4]
            if len(head) < 8 or not name.isascii() or not name.strip(b"\0"):
                return chunks, at
            size = int.from_bytes(head[4:], "little")
            chunks.append((name, at + 8, size))
            at += 8 + size + size % 2


def size_warnings(path: str | os.PathLike) -> list[str]:
    """Warn about a WAV that is shorter or longer than its header states: its samples may be
    shifted."""
    chunks, end = _chunks(path)
    stated = [size for kind, _, size in chunks if kind == b"data"]
    if not stated or stated[0] in _UNKNOWN_SIZES:
        return []
    difference = os.path.getsize(path) - end
    with open(path, "rb") as handle:
        handle.seek(end)
        is_padded = not handle.read(1 << 16).strip(b"\0")  # with zeros, which are no sound
    if difference == 0 or (difference > 0 and is_padded):
        return []
    side = "longer" if difference > 0 else "shorter"
    problem = f"size_wrong: {os.path.basename(path)} is {abs(difference)} bytes {side} than stated"
    return [f"{problem}; if that is so within the audio, what follows is shifted"]


def open_pcm(path: str | os.PathLike) -> soundfile.SoundFile | None:
    """A PCM file, open for reading; None if the stream reader takes it: no PCM, or none of a sure
    length."""
    if not _PCM_CONTAINERS.match(head_of(path)):
        return None
    try:
        handle = soundfile.SoundFile(os.fspath(path))
    except (RuntimeError, OSError, TypeError, UnicodeError):
        if sum(kind == b"data" for kind, _, _ in _chunks(path)[0]) > 1:
            # FFmpeg would play the last one as if it were all.
            raise AudioError("audio_load", path, "is a WAV with more than one data chunk") from None
        return None
    size = os.path.getsize(path)
    overflown = size > _LARGEST_RIFF and handle.format in ("WAV", "WAVEX", "AIFF")
    if handle.subtype not in _READ_AS or overflown or not 0 < handle.frames <= size:
        handle.close()
        return None
    return handle


def pcm_info(handle: soundfile.SoundFile) -> AudioInfo:
    """Facts of an open PCM file, by its header."""
    warnings = size_warnings(handle.name) if handle.format in ("WAV", "WAVEX") else []
    return AudioInfo(handle.frames / handle.samplerate, tuple(warnings))


def read_pcm(handle: soundfile.SoundFile, start: int, stop: int) -> np.ndarray:
    """Samples [start, stop) as mono on the int16 scale (see `recording.mono`)."""
    try:
        handle.seek(start)
        block = handle.read(stop - start, dtype=_READ_AS[handle.subtype], always_2d=True)
    except (RuntimeError, OSError) as error:
        raise AudioError(
            "audio_load", handle.name, f"cannot be read at sample {start} ({error})"
        ) from None
    if len(block) != stop - start:
        raise AudioError(
            "out_of_range", handle.name, f"ends at sample {start + len(block)}, before {stop}"
        )
    _check_floats(handle.name, block, start)
    channels = list(block.T)
    return mono(channels, cancel(channels))


def _check_floats(path: str, block: np.ndarray, start: int) -> None:
    """Raise AudioError if `block` (samples, channels) is of floats, and one of them is no sound."""
    if block.dtype.kind != "f":
        return
    # NaN compares as false.
    absurd = block.size - np.count_nonzero(np.abs(block) <= LOUDEST)
    if not absurd:
        return
    problem = (
        f"holds NaN, infinity or more than {LOUDEST:g}, where 1 is full scale, in {absurd:,} of"
        f" {block.size:,} values from sample {start} on"
    )
    remedy = "If they are on the scale of int16, divide them by 32768; else make it again"
    raise AudioError("audio_load", path, problem, remedy)
