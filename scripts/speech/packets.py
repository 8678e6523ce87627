"""Demuxed packets: what they say about their place on the timeline."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

import av

from scripts.speech import adts

# With fewer, a bit rate is not known to be constant.
_ENOUGH_PACKETS = 32


def without_outliers(packets: Iterator[av.Packet]) -> Iterator[av.Packet]:
    """The packets; one whose stamp leaves the row that those before and behind it form (a flipped bit) has none."""
    before: av.Packet | None = None
    held: av.Packet | None = None
    for packet in packets:
        if held is not None:
            if before is not None and None not in (before.pts, held.pts, packet.pts):
                step = (packet.pts - before.pts) / 2
                # Twice the usual length between its neighbours, and not about midway: only its own stamp is wrong.
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
    """Whether an undecodable packet of a stream without stamps has swallowed no audio: a tag between joined files."""
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
        """How many packets take `size` bytes; 0 where their sizes differ (but by the byte that pads some), or no number
        does."""
        if self.seen < _ENOUGH_PACKETS or self.most > self.least + 1:
            return 0
        mean = self.total / (self.seen - 2)
        times = round(size / mean)
        return times if abs(size - times * mean) <= self.most - self.least else 0


def frames_held(packet: av.Packet, form: str, sizes: Sizes) -> int | None:
    """How many frames an undecodable packet of a stream without stamps stands for; None where that can't be told.

    One, where it is as long as its header says. At a constant bit rate, several that have lost their headers, where its
    bytes are those of so many: then damage has overwritten bytes, and neither lost nor added any.
    """
    if adts.frame_bytes(bytes(packet)[:7], form) == packet.size:
        return 1
    return sizes.times(packet.size) or None


def discarded(packet: av.Packet) -> tuple[int, int]:
    """Samples that the decoder takes off a packet's start and end (encoder delay and padding)."""
    if not packet.has_sidedata("skip_samples"):
        return 0, 0
    raw = bytes(packet.get_sidedata("skip_samples"))
    return struct.unpack("<II", raw[:8]) if len(raw) >= 8 else (0, 0)
