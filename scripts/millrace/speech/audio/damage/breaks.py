"""Where the structure of a file breaks, for containers whose time stamps mislead behind damage.

FFmpeg goes on behind damage without an error: it stamps the blocks of a Matroska cluster whose
header is gone as if they belonged to the cluster before, stamps frames of an MPEG stream like
others that are lost, and decodes duplicated data twice. So the chain of clusters, pages or packets
is walked once, from header to header; nothing is decoded. A container's `find_breaks` takes the
file's bytes and the id of its audio stream.
"""

from __future__ import annotations

from typing import NamedTuple


class Break(NamedTuple):
    """Bytes [start, stop) that can't be placed. `recovers`: time stamps behind it can be believed
    again."""

    start: int
    stop: int
    recovers: bool = True
