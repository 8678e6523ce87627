"""Where the structure of a file breaks, for containers whose time stamps mislead behind damage.

FFmpeg goes on behind damage without an error: it stamps the blocks of a Matroska cluster whose
header is gone as if they belonged to the cluster before, and decodes duplicated data twice. So the
chain of clusters or pages is walked once, from header to header; nothing is decoded. A recording
ends at its first break. Of transport streams, which go on behind losses, FFmpeg itself leaves out
the packets that are not whole.
"""

from __future__ import annotations

import mmap

from millrace.speech.audio.damage import matroska, ogg


def find_break(path: str, container_format: str) -> int | None:
    """Position of the first break of a file; None if there is none, and for formats that show
    theirs in other ways."""
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as raw:
        if container_format == "matroska,webm":
            return matroska.find_break(raw)
        if container_format == "ogg":
            return ogg.find_break(raw)
        return None
