"""Demuxed packets: what they say about their place on the timeline."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

import av
import numpy as np

from millrace.speech.audio.damage import frames
from millrace.speech.audio.recording import cancel, mono

# With fewer, a bit rate is not known to be constant.
_ENOUGH_PACKETS = 32


def without_outliers(packets: Iterator[av.Packet]) -> Iterator[av.Packet]:
    """The packets; one whose stamp leaves the row that those before and behind it form (a flipped bit) has
    none."""
    before: av.Packet | None = None
    held: av.Packet | None = None
    for packet in packets:
        if held is not None:
            if before is not None and None not in (before.pts, held.pts, packet.pts):
                step = (packet.pts - before.pts) / 2
                # Twice the usual length between its neighbours, and not about midway: only its own stamp is
                # wrong.
                length = max(before.duration or 0, held.duration or 0)
                usual = 0 < 0.75 * length <= step <= 1.25 * length
                if usual and abs(held.pts - before.pts - step) > 0.6 * step:
                    held.pts = held.dts = round(before.pts + step)
            before = held
            yield held
        held = packet
    if held is not None:
        yield held


def keeps_place(packet: av.Packet) -> bool:
    """Whether an undecodable packet of a stream without stamps has swallowed no audio: a tag between joined
    files."""
    raw = bytes(packet)[:8]
    return raw[:3] in (b"ID3", b"TAG") or raw == b"APETAGEX"


@dataclass
class Sizes:
    """Sizes in bytes of the packets that could be decoded, but for the first ones, which may be no audio."""

    seen: int = 0
    total: int = 0
    least: int = 1 << 62
    most: int = 0

    def add(self, size: int) -> None:
        self.seen += 1
        if self.seen > 2:
            self.total += size
            self.least, self.most = min(self.least, size), max(self.most, size)

    def times(self, size: int) -> int:
        """How many packets take `size` bytes; 0 where their sizes differ (but by the byte that pads some), or
        no number does."""
        if self.seen < _ENOUGH_PACKETS or self.most > self.least + 1:
            return 0
        mean = self.total / (self.seen - 2)
        times = round(size / mean)
        return times if abs(size - times * mean) <= self.most - self.least else 0


def frames_held(packet: av.Packet, form: str, sizes: Sizes) -> int | None:
    """How many frames an undecodable packet of a stream without stamps stands for; None where that can't be
    told.

    One, where it is as long as its header says. At a constant bit rate, several that have lost their headers,
    where its bytes are those of so many: then damage has overwritten bytes, and neither lost nor added any.
    """
    if frames.frame_bytes(bytes(packet)[:7], form) == packet.size:
        return 1
    return sizes.times(packet.size) or None


def discarded(packet: av.Packet) -> tuple[int, int]:
    """Samples that the decoder takes off a packet's start and end (encoder delay and padding)."""
    if not packet.has_sidedata("skip_samples"):
        return 0, 0
    raw = bytes(packet.get_sidedata("skip_samples"))
    return struct.unpack("<II", raw[:8]) if len(raw) >= 8 else (0, 0)


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
            # The planes of audio frames are padded; the samples come first. Of 8 channels PyAV lists one
            # plane more, which points nowhere.
            self.planes.append([np.frombuffer(plane, dtype, n) for plane in frame.planes[: self.channels]])
        else:
            packed = np.frombuffer(frame.planes[0], dtype, n * self.channels)
            self.planes.append([packed] if self.channels == 1 else list(packed.reshape(n, self.channels).T))
        self.samples += n

    def at_rate(self, rate: int) -> Iterator[np.ndarray]:
        """One mono block at `rate`, that of the recording's first frame: it can change (chained Ogg, late
        SBR)."""
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
