"""Decoded frames gathered into blocks of mono samples."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import av
import numpy as np

from scripts.speech.recording import cancel, mono

# FFmpeg's sample formats, packed or planar.
DTYPES = {"u8": np.uint8, "s16": np.int16, "s32": np.int32, "flt": np.float32, "dbl": np.float64}


@dataclass
class FrameRun:
    """Frames of one format, rate and channel count that wait to become one block."""

    name: str
    rate: int
    planar: bool
    channels: int
    planes: list[list[np.ndarray]] = field(default_factory=list)
    samples: int = 0
    opposite: bool = False  # of the newest block: see `recording.cancel`

    def add(self, frame: av.AudioFrame, dtype: type) -> None:
        n = frame.samples
        if self.planar:
            # The planes of audio frames are padded; the samples come first. Of 8 channels PyAV lists one plane more,
            # which points nowhere.
            self.planes.append([np.frombuffer(plane, dtype, n) for plane in frame.planes[: self.channels]])
        else:
            packed = np.frombuffer(frame.planes[0], dtype, n * self.channels)
            self.planes.append([packed] if self.channels == 1 else list(packed.reshape(n, self.channels).T))
        self.samples += n

    def at_rate(self, rate: int) -> Iterator[np.ndarray]:
        """One mono block at `rate`, that of the recording's first frame: it can change (chained Ogg, late SBR)."""
        if not self.samples:
            return
        channels = [np.concatenate(parts) for parts in zip(*self.planes, strict=True)]
        self.opposite = cancel(channels)
        block = mono(channels, self.opposite)
        if self.rate != rate:
            import soxr

            block = soxr.resample(block.astype(np.float32), self.rate, rate, quality="HQ")
        yield block


def silence_blocks(samples: int, rate: int) -> Iterator[np.ndarray]:
    """`samples` zeros in blocks of at most 10 s."""
    for start in range(0, samples, 10 * rate):
        yield np.zeros(min(10 * rate, samples - start), np.int16)
