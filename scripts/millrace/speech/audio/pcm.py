"""PCM recordings (WAV, RF64, W64, AIFF, CAF) through libsndfile: any span in one seek and one read."""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np
import soundfile

from millrace.speech.audio.recording import AudioError, AudioInfo, cancel, mono, opposite_warning

# Read as the narrowest type that holds them; libsndfile itself would cut 24 bits to 16 without rounding.
_READ_AS = {
    **dict.fromkeys(("PCM_S8", "PCM_U8", "PCM_16", "ULAW", "ALAW"), "int16"),
    **dict.fromkeys(("PCM_24", "PCM_32"), "int32"),
    "FLOAT": "float32",
    "DOUBLE": "float64",
}
_LARGEST_RIFF = 0xFFFFFFFF
# What streams write for a size that they don't know.
_UNSTATED = (0, 0x7FFFFFFF, 0x7FFFF000, 0x7FFFF024, 0x80000000, 0xFFFFFFFE, 0xFFFFFFFF)


_HEARD_SECONDS = 4


def _chunks(path: str | os.PathLike) -> tuple[list[tuple[bytes, int, int]], int]:
    """Name, place of the body, and stated size of the chunks of a RIFF file; and where their chain ends."""
    found: list[tuple[bytes, int, int]] = []
    at = 12
    with open(path, "rb") as handle:
        while True:
            handle.seek(at)
            head = handle.read(8)
            if len(head) < 8 or not head[:4].isascii() or not head[:4].strip(b"\0"):
                return found, at
            size = int.from_bytes(head[4:], "little")
            found.append((head[:4], at + 8, size))
            at += 8 + size + size % 2


def loose_ends(path: str | os.PathLike) -> Iterator[str]:
    """Warnings about a WAV that holds more, or less, than its header states: samples may not lie where they
    did."""
    name, length = os.path.basename(path), os.path.getsize(path)
    with open(path, "rb") as handle:
        if handle.read(4) != b"RIFF":
            return
    chunks, end = _chunks(path)
    held = next(((at, size) for kind, at, size in chunks if kind == b"data"), None)
    if held is None or held[1] in _UNSTATED:
        return
    missing = sum(held) - length
    if missing > 0:
        yield (
            f"bytes_missing: {name} is {missing} bytes shorter than it states; if they are missing within the audio, "
            "what follows is early"
        )
    elif end < length:
        with open(path, "rb") as handle:
            handle.seek(end)
            if handle.read(1 << 16).strip(b"\0"):
                yield (
                    f"bytes_behind: {length - end} bytes at the end of {name} are no chunk; if as many were added "
                    "within the audio, what follows is late"
                )


class PcmRecording:
    """An open PCM file; `open` returns None for what libsndfile can't read exactly: that is for the stream
    reader."""

    def __init__(self, path: str | os.PathLike, handle: soundfile.SoundFile) -> None:
        self.path, self.handle = path, handle
        self.sample_rate, self.channels, self.frames = handle.samplerate, handle.channels, handle.frames

    @classmethod
    def open(cls, path: str | os.PathLike) -> PcmRecording | None:
        """None: compressed inside, size unknown (a pipe wrote 0), or sizes that 32 bits cannot hold."""
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
        return cls(path, handle)

    def info(self) -> AudioInfo:
        container = "wav" if self.handle.format == "WAVEX" else self.handle.format.lower()
        warnings = list(loose_ends(self.path)) if container == "wav" else []
        if self.channels == 2:
            self.handle.seek(0)
            heard = self.handle.read(_HEARD_SECONDS * self.sample_rate, dtype="float32", always_2d=True)
            if cancel(list(heard.T)):
                warnings.append(opposite_warning(self.path))
        return AudioInfo(
            path=os.fspath(self.path),
            container=container,
            codec=self.handle.subtype.lower(),
            sample_rate=self.sample_rate,
            channels=self.channels,
            duration_seconds=self.frames / self.sample_rate,
            lossless=True,
            warnings=tuple(warnings),
        )

    def read(self, start: int, stop: int) -> np.ndarray:
        """Samples [start, stop) as mono on the int16 scale (see `recording.mono`)."""
        try:
            self.handle.seek(start)
            block = self.handle.read(stop - start, dtype=_READ_AS[self.handle.subtype], always_2d=True)
        except (RuntimeError, OSError) as error:
            raise AudioError("audio_load", self.path, f"cannot be read at sample {start} ({error})") from None
        if len(block) != stop - start:
            raise AudioError("out_of_range", self.path, f"ends at sample {start + len(block)}, before {stop}")
        return mono([block[:, channel] for channel in range(self.channels)])

    def close(self) -> None:
        self.handle.close()
