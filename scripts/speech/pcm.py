"""PCM recordings (WAV, RF64, W64, AIFF, CAF) through libsndfile: any span in one seek and one read."""

from __future__ import annotations

import os

import numpy as np
import soundfile

from scripts.speech.recording import AudioError, AudioInfo, mono

# Read as the narrowest type that holds them; libsndfile itself would cut 24 bits to 16 without rounding.
_READ_AS = {
    **dict.fromkeys(("PCM_S8", "PCM_U8", "PCM_16", "ULAW", "ALAW"), "int16"),
    **dict.fromkeys(("PCM_24", "PCM_32"), "int32"),
    "FLOAT": "float32",
    "DOUBLE": "float64",
}
_LARGEST_RIFF = 0xFFFFFFFF


def _data_chunks(path: str | os.PathLike) -> int:
    found, at = 0, 12
    with open(path, "rb") as handle:
        while True:
            handle.seek(at)
            head = handle.read(8)
            if len(head) < 8 or not head[:4].isascii():
                return found
            size = int.from_bytes(head[4:], "little")
            found += head[:4] == b"data"
            at += 8 + size + size % 2


class PcmRecording:
    """An open PCM file; `open` returns None for what libsndfile can't read exactly: that is for the stream reader."""

    def __init__(self, path: str | os.PathLike, handle: soundfile.SoundFile) -> None:
        self.path, self.handle = path, handle
        self.sample_rate, self.channels, self.frames = handle.samplerate, handle.channels, handle.frames

    @classmethod
    def open(cls, path: str | os.PathLike) -> PcmRecording | None:
        """None: compressed inside, size unknown (a pipe wrote 0), or sizes that 32 bits cannot hold."""
        try:
            handle = soundfile.SoundFile(os.fspath(path))
        except (RuntimeError, OSError, TypeError, UnicodeError):
            if _data_chunks(path) > 1:
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
        return AudioInfo(
            path=os.fspath(self.path),
            container=container,
            codec=self.handle.subtype.lower(),
            sample_rate=self.sample_rate,
            channels=self.channels,
            duration_seconds=self.frames / self.sample_rate,
            lossless=True,
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
