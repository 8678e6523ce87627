"""The first break in the chain of clusters of Matroska and WebM (RFC 9559; its sizes and ids are
EBML, RFC 8794)."""

from __future__ import annotations

import mmap
from typing import NamedTuple

_SEGMENT = b"\x18\x53\x80\x67"
_CLUSTER = b"\x1f\x43\xb6\x75"
# SeekHead, Info, Tracks, Cues, Attachments, Chapters, Tags, and the EBML head of a file that is
# joined on
_OTHERS = "114d9b74 1549a966 1654ae6b 1c53bb6b 1941a469 1043a770 1254c367 1a45dfa3"
_TOP = {_SEGMENT, _CLUSTER, *(bytes.fromhex(name) for name in _OTHERS.split())}
_TIMESTAMP = 0xE7
_SILENT_TRACKS = b"\x58\x54"
_FILLERS = (0xEC, 0xBF)  # Void, CRC-32
# Timestamp, SimpleBlock, BlockGroup, Position, PrevSize, EncryptedBlock
_IN_CLUSTER = {_TIMESTAMP, 0xA3, 0xA0, 0xA7, 0xAB, 0xAF, *_FILLERS}


def find_break(raw: mmap.mmap) -> int | None:
    """Position of the first element that is damaged; None if each ends where another one begins.

    Of two clusters in the wrong order, or one that is there twice, nothing tells which one is
    right: both are damaged.
    """
    before: _Cluster | None = None
    at = 0
    while at < len(raw):
        name = raw[at : at + 4]
        if name == _CLUSTER:
            stamp = _timestamp(raw, at)
            if stamp is None:
                return at
            if before is not None and stamp <= before.stamp:
                return before.start
            before = _Cluster(at, stamp)
            at, broken = _behind_cluster(raw, at)
            if broken is not None:
                return broken
        elif name == _SEGMENT:
            # Its children are walked; in joined files each begins a timeline of its own.
            before = None
            at = _size(raw, at + 4)[1]
        else:
            after = _behind_element(raw, at)
            if after is None:
                return at
            at = after
    return None


class _Cluster(NamedTuple):
    start: int
    stamp: int


def _behind_cluster(raw: mmap.mmap, start: int) -> tuple[int, int | None]:
    """Position behind a cluster, and where it is broken, if it is."""
    size, body = _size(raw, start + 4)
    if size is not None and _is_top(raw, body + size):
        return body + size, None
    # It does not end on what may follow one: the break is somewhere inside.
    end, broken = _walk_cluster(raw, start)
    if broken is None and not _is_top(raw, end):
        broken = start
    return end, broken


def _behind_element(raw: mmap.mmap, at: int) -> int | None:
    """Position behind an element that is no cluster; None if it is damaged, or cut off."""
    is_top = raw[at : at + 4] in _TOP
    if not is_top and raw[at] not in _FILLERS:
        return None
    size, body = _size(raw, at + (4 if is_top else 1))
    if size is None:
        return None
    # The last one may be cut off.
    if body + size > len(raw) or _is_top(raw, body + size):
        return body + size
    return None


def _size(raw: mmap.mmap, at: int) -> tuple[int | None, int]:
    """An EBML size and the position behind it; None if it is unknown (a live stream), or no
    size."""
    if at >= len(raw) or not raw[at]:
        return None, at + 1
    length = 9 - raw[at].bit_length()
    unknown = (1 << 7 * length) - 1
    value = int.from_bytes(raw[at : at + length], "big") & unknown
    return (None if value == unknown else value), at + length


def _is_top(raw: mmap.mmap, at: int) -> bool:
    if at >= len(raw):
        return at == len(raw)
    return raw[at] in _FILLERS or raw[at : at + 4] in _TOP


def _walk_cluster(raw: mmap.mmap, start: int) -> tuple[int, int | None]:
    """Position behind the cluster at `start`, and that of its last child if the chain breaks behind
    it."""
    size, at = _size(raw, start + 4)
    end = None if size is None else at + size
    last = start
    while at != end and at < len(raw):
        if raw[at] in _IN_CLUSTER:
            child, body = _size(raw, at + 1)
        elif raw[at : at + 2] == _SILENT_TRACKS:
            child, body = _size(raw, at + 2)
        elif end is None and raw[at : at + 4] in _TOP:
            break
        else:
            return at, last
        if child is None or body + child > min(len(raw), end or len(raw)):
            return at, at
        last = at
        at = body + child
    return at, None if end is None or at == end else last


def _timestamp(raw: mmap.mmap, start: int) -> int | None:
    """The time stamp of the cluster at `start`; None if its first child, but for fillers, is
    none."""
    at = _size(raw, start + 4)[1]
    for _ in range(3):
        size, body = _size(raw, at + 1)
        if at >= len(raw) or size is None:
            return None
        if raw[at] == _TIMESTAMP:
            if size <= 8:
                return int.from_bytes(raw[body : body + size], "big")
            return None
        if raw[at] not in _FILLERS:
            return None
        at = body + size
    return None
