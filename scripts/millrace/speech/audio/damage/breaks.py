"""Where the structure of a file breaks, for containers whose time stamps mislead behind damage.

FFmpeg goes on behind damage without an error: it stamps the blocks of a Matroska cluster whose
header is gone as if they belonged to the cluster before, stamps frames of an MPEG stream like
others that are lost, and decodes duplicated data twice. So the chain of clusters, pages or packets
is walked once, from header to header; nothing is decoded. Files end at their first break; a
transport stream goes on, as losses are what it is made for.
"""

from __future__ import annotations

import mmap
from typing import NamedTuple

from millrace.speech.audio.damage import matroska, mpegts, ogg


class Break(NamedTuple):
    """Bytes [start, stop) that can't be placed. `ends`: nor can what follows."""

    start: int
    stop: int
    ends: bool = False


def find_breaks(path: str, container_format: str, stream_id: int) -> list[Break]:
    """Breaks of a file for one of its streams, in order; none for formats that show theirs in other
    ways."""
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as raw:
        if container_format == "mpegts":
            return [Break(start, stop) for start, stop in mpegts.find_breaks(raw, stream_id)]
        if container_format == "matroska,webm":
            first = matroska.find_break(raw)
        elif container_format == "ogg":
            first = ogg.find_break(raw)
        else:
            first = None
        return [] if first is None else [Break(first, len(raw), ends=True)]
