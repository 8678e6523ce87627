"""Packets before they are decoded: which time stamps are corrected, what is a tag and no audio; and
the frames that they decode to until these become a block."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING

import av
import numpy as np

if TYPE_CHECKING:
    from av.audio.plane import AudioPlane

# FFmpeg's sample formats; those of planar samples end in "p".
DTYPES: dict[str, type[np.generic]] = {
    "u8": np.uint8,
    "s16": np.int16,
    "s32": np.int32,
    "flt": np.float32,
    "dbl": np.float64,
}


def without_outliers(packets: Iterator[av.Packet]) -> Iterator[av.Packet]:
    """The packets; a stamp that does not fit between its neighbours (a flipped bit) is
    corrected."""
    before: av.Packet | None = None
    middle: av.Packet | None = None
    for packet in itertools.chain(packets, [None]):
        if before is not None and middle is not None and packet is not None:
            _correct(before, middle, packet)
        if middle is not None:
            yield middle
        before = middle
        middle = packet


def _correct(before: av.Packet, middle: av.Packet, after: av.Packet) -> None:
    """If the neighbours of a packet are two usual lengths apart, and it is not midway, its own
    stamp is wrong."""
    if before.pts is None or middle.pts is None or after.pts is None:
        return
    step = (after.pts - before.pts) / 2
    length = max(before.duration or 0, middle.duration or 0)
    if not 0 < 0.75 * length <= step <= 1.25 * length:
        return
    midway = before.pts + step
    if abs(middle.pts - midway) > 0.6 * step:
        middle.pts = round(midway)
        middle.dts = round(midway)


def is_tag(packet: av.Packet) -> bool:
    """Whether a packet of a stream without stamps is no audio, but a tag between joined files."""
    raw = bytes(packet)[:8]
    return raw[:3] in (b"ID3", b"TAG") or raw == b"APETAGEX"


def discarded(packet: av.Packet) -> tuple[int, int]:
    """Samples that the decoder takes off a packet's start and end (encoder delay and padding)."""
    if not packet.has_sidedata("skip_samples"):
        return 0, 0
    raw = bytes(packet.get_sidedata("skip_samples"))
    if len(raw) >= 8:
        return struct.unpack("<II", raw[:8])
    return (0, 0)


class FrameRun:
    """Decoded frames of one kind that wait to become one block.

    `kind`: FFmpeg's sample format (a key of DTYPES, with a "p" behind it if planar), rate and
    channel count.
    """

    def __init__(self, kind: tuple[str, int, int]) -> None:
        self.kind = kind
        name, self.rate, self._channels = kind
        self._is_planar = name.endswith("p")
        self._dtype = DTYPES[name.removesuffix("p")]
        self._planes: list[list[np.ndarray]] = []
        self.samples = 0

    def add(self, frame: av.AudioFrame) -> None:
        """Take one more frame."""
        n = frame.samples
        channels = self._channels
        self.samples += n
        if self._is_planar:
            # The planes of audio frames are padded; the samples come first. Of 8 channels PyAV
            # lists one plane more, which points nowhere.
            planes = [self._of_plane(plane, n) for plane in frame.planes[:channels]]
            self._planes.append(planes)
            return
        packed = self._of_plane(frame.planes[0], n * channels)
        self._planes.append(list(packed.reshape(n, channels).T))

    def _of_plane(self, plane: AudioPlane, count: int) -> np.ndarray:
        # NumPy's types know no classes with a buffer of their own.
        return np.frombuffer(plane, self._dtype, count)  # type: ignore[call-overload]

    def take(self) -> list[np.ndarray]:
        """Each channel's samples (n,); the run is empty afterwards."""
        channels = [np.concatenate(parts) for parts in zip(*self._planes, strict=True)]
        self._planes = []
        self.samples = 0
        return channels
