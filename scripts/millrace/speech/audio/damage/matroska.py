"""The first break in the elements of Matroska and WebM (RFC 9559; its sizes and ids are EBML,
RFC 8794)."""

from __future__ import annotations

import mmap
from typing import NamedTuple

_SEGMENT = bytes.fromhex("18538067")
_CLUSTER = bytes.fromhex("1f43b675")
# SeekHead, Info, Tracks, Cues, Attachments, Chapters, Tags, and the EBML head of a file that is
# joined on
_OTHERS = "114d9b74 1549a966 1654ae6b 1c53bb6b 1941a469 1043a770 1254c367 1a45dfa3"
_TOP = {_SEGMENT, _CLUSTER, *map(bytes.fromhex, _OTHERS.split())}
_TIMESTAMP = b"\xe7"
_SILENT_TRACKS = b"\x58\x54"
_FILLERS = {b"\xec", b"\xbf"}  # Void, CRC-32
# SimpleBlock, BlockGroup, Position, PrevSize, EncryptedBlock
_IN_CLUSTER = {b"\xa3", b"\xa0", b"\xa7", b"\xab", b"\xaf"}
_IN_CLUSTER |= {_TIMESTAMP, _SILENT_TRACKS, *_FILLERS}


class _Cluster(NamedTuple):
    start: int
    stamp: int


def find_break(raw: mmap.mmap) -> int | None:
    """Position of the element from which on nothing is sure; None if each ends where another one
    begins.

    Of two clusters in the wrong order, or one that is there twice, nothing tells which one is
    right: both are damaged.
    """
    nothing = _Cluster(0, -1)
    before = nothing
    last = 0
    at = 0
    while at < len(raw):
        name = raw[at : at + 4]
        if name not in _TOP:
            name = raw[at : at + 1]
        if name not in _TOP and name not in _FILLERS:
            return last  # whose size is wrong, or it is this one
        size, body = _size(raw, at + len(name))
        end = None if size is None else body + size
        if name == _CLUSTER:
            stamp = _timestamp(raw, body)
            if stamp is None:
                return at
            if stamp <= before.stamp:
                return before.start
            before = _Cluster(at, stamp)
            end = _end_of_live(raw, body) if end is None else end
        elif name == _SEGMENT:
            # Its children are walked; in joined files each begins a timeline of its own.
            before = nothing
            end = body
        if end is None:
            return at
        last = at
        at = end
    return None


def _timestamp(raw: mmap.mmap, at: int) -> int | None:
    """The time stamp of a cluster whose children begin here; None if the first one, but for
    fillers, is none."""
    while at < len(raw):
        name = raw[at : at + 1]
        size, body = _size(raw, at + 1)
        if size is None or name not in (_TIMESTAMP, *_FILLERS):
            return None
        if name == _TIMESTAMP:
            return int.from_bytes(raw[body : body + size], "big")
        at = body + size
    return None


def _end_of_live(raw: mmap.mmap, at: int) -> int | None:
    """Where a cluster of unknown size ends, whose children begin here; None if one is damaged. The
    last one may be cut off."""
    while at < len(raw) and raw[at : at + 4] not in _TOP:
        name = raw[at : at + 2] if raw[at] == _SILENT_TRACKS[0] else raw[at : at + 1]
        size, body = _size(raw, at + len(name))
        if size is None or name not in _IN_CLUSTER:
            return None
        at = body + size
    return at


def _size(raw: mmap.mmap, at: int) -> tuple[int | None, int]:
    """An EBML size and the position behind it; None if it is unknown (a live stream), or no
    size."""
    if at >= len(raw) or not raw[at]:
        return None, at + 1
    length = 9 - raw[at].bit_length()
    unknown = (1 << 7 * length) - 1
    value = int.from_bytes(raw[at : at + length], "big") & unknown
    return (None if value == unknown else value), at + length
