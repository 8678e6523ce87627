"""The first break in the elements of Matroska and WebM (RFC 9559; its sizes and ids are EBML,
RFC 8794)."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from typing import NamedTuple

_SEGMENT = bytes.fromhex("18538067")
_CLUSTER = bytes.fromhex("1f43b675")
# SeekHead, Info, Tracks, Cues, Attachments, Chapters, Tags, and the EBML head of a file that is
# joined on
_OTHERS = "114d9b74 1549a966 1654ae6b 1c53bb6b 1941a469 1043a770 1254c367 1a45dfa3"
_TOP = {_SEGMENT, _CLUSTER, *map(bytes.fromhex, _OTHERS.split())}
_TIMESTAMP = b"\xe7"
_BLOCKS = {b"\xa3", b"\xa0"}
_FILLERS = {b"\xec", b"\xbf"}
# Position, PrevSize, EncryptedBlock, SilentTracks
_IN_CLUSTER = {_TIMESTAMP, *_BLOCKS, *_FILLERS, b"\xa7", b"\xab", b"\xaf", b"\x58\x54"}


class _Element(NamedTuple):
    """An element; without a name there is none at `start`, and `end` is None if it is unknown."""

    name: bytes
    start: int
    body: int = 0
    end: int | None = None


def find_break(raw: mmap.mmap) -> int | None:
    """Position of the element from which on nothing is sure; None if each ends where another one
    begins.

    Of two clusters in the wrong order, or one that is there twice, nothing tells which one is
    right: both are damaged.
    """
    cluster: _Element | None = None  # that the element lies in
    cluster_before = 0
    stamp = -1  # the newest of this timeline
    is_stamped = False
    last = 0
    for element in _elements(raw):
        if cluster is not None and element.start == cluster.end:
            cluster = None
        if not _fits(element, cluster):
            return last
        if element.name == _SEGMENT:
            stamp = -1  # in joined files each begins a timeline of its own
        elif element.name == _CLUSTER:
            cluster = element
            is_stamped = False
        elif element.name == _TIMESTAMP:
            number = int.from_bytes(raw[element.body : element.end], "big")
            if number <= stamp:
                return cluster_before
            stamp = number
            is_stamped = True
            cluster_before = cluster.start if cluster else 0
        elif element.name in _BLOCKS and not is_stamped:
            return last
        elif element.name in _TOP:
            cluster = None
        last = element.start
    return None


def _fits(element: _Element, cluster: _Element | None) -> bool:
    """Whether an element may stand where it stands, in a cluster or on top."""
    if element.name in _TOP:
        # A cluster of unknown size ends where another element of the top begins.
        return cluster is None or cluster.end is None
    if element.end is None:
        return False
    if cluster is None:
        return element.name in _FILLERS
    is_within = cluster.end is None or element.end <= cluster.end
    return element.name in _IN_CLUSTER and is_within


def _elements(raw: mmap.mmap) -> Iterator[_Element]:
    """The elements of a file, and those within segments and clusters; the last may be cut off."""
    at = 0
    while at < len(raw):
        name = raw[at : at + 4]
        if name not in _TOP:
            name = raw[at : at + 2] if raw[at] == 0x58 else raw[at : at + 1]
        size, body = _size(raw, at + len(name))
        end = None if size is None else body + size
        yield _Element(name, at, body, end)
        is_entered = name in (_SEGMENT, _CLUSTER) or end is None
        at = body if is_entered else end


def _size(raw: mmap.mmap, at: int) -> tuple[int | None, int]:
    """An EBML size and the position behind it; None if it is unknown (a live stream), or no
    size."""
    if at >= len(raw) or not raw[at]:
        return None, at + 1
    length = 9 - raw[at].bit_length()
    unknown = (1 << 7 * length) - 1
    value = int.from_bytes(raw[at : at + length], "big") & unknown
    return (None if value == unknown else value), at + length
