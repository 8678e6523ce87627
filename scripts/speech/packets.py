"""Demuxed packets: what they say about their place on the timeline."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import av


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


def discarded(packet: av.Packet) -> tuple[int, int]:
    """Samples that the decoder takes off a packet's start and end (encoder delay and padding)."""
    if not packet.has_sidedata("skip_samples"):
        return 0, 0
    raw = bytes(packet.get_sidedata("skip_samples"))
    return struct.unpack("<II", raw[:8]) if len(raw) >= 8 else (0, 0)
