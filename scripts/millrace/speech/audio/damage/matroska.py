"""Breaks in the chain of clusters of Matroska and WebM (RFC 9559; its sizes and ids are EBML, RFC
8794)."""

from __future__ import annotations

import mmap

from millrace.speech.audio.damage.breaks import Break

_SEGMENT, _CLUSTER = b"\x18\x53\x80\x67", b"\x1f\x43\xb6\x75"
# SeekHead, Info, Tracks, Cues, Attachments, Chapters, Tags, and the EBML head of a file that is
# joined on
_OTHERS = "114d9b74 1549a966 1654ae6b 1c53bb6b 1941a469 1043a770 1254c367 1a45dfa3"
_TOP = {_SEGMENT, _CLUSTER, *(bytes.fromhex(name) for name in _OTHERS.split())}
_TIMESTAMP, _SILENT_TRACKS = 0xE7, b"\x58\x54"
_FILLERS = (0xEC, 0xBF)  # Void, CRC-32
# Timestamp, SimpleBlock, BlockGroup, Position, PrevSize, EncryptedBlock
_IN_CLUSTER = {_TIMESTAMP, 0xA3, 0xA0, 0xA7, 0xAB, 0xAF, *_FILLERS}


def find_breaks(raw: mmap.mmap, _stream_id: int = 0) -> list[Break]:
    """Breaks of a file, in order: from the element that is damaged to the next cluster that is
    whole."""
    breaks: list[Break] = []
    clusters: list[tuple[int, int, int]] = []  # position, number of the segment, time stamp
    segment = at = 0
    while at < len(raw):
        name = raw[at : at + 4]
        broken = None
        if name == _CLUSTER:
            size, body = _size(raw, at + 4)
            stamp = _timestamp(raw, at)
            after = len(raw) + 1 if size is None else body + size
            if stamp is None:
                broken = at
            else:
                clusters.append((at, segment, stamp))
                # A cluster is whole if it ends on what may follow one; else the break is somewhere
                # inside.
                if not _is_top(raw, after):
                    after, broken = _walk_cluster(raw, at)
                    if broken is None and not _is_top(raw, after):
                        broken = at
        elif name in _TOP or raw[at] in _FILLERS:
            size, body = _size(raw, at + (4 if name in _TOP else 1))
            if (
                name == _SEGMENT
            ):  # its children are walked; in joined files each begins a timeline of its own
                segment, after, sound = segment + 1, body, True
            else:
                after, sound = body + (size or 0), size is not None
            broken = None if sound and (after > len(raw) or _is_top(raw, after)) else at
        else:
            broken, after = at, at
        if broken is not None:
            after = _next_cluster(raw, max(at + 1, broken))
            breaks.append(Break(broken, after))
        at = after
    # Of two clusters in the wrong order, or one that is there twice, nothing tells which one is
    # right.
    ends = [start for start, _, _ in clusters[2:]] + [len(raw)]
    for (start, *before), (_, *after), end in zip(clusters, clusters[1:], ends, strict=False):
        if before[0] == after[0] and after[1] <= before[1]:
            breaks.append(Break(start, end))
    return sorted(breaks)


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
    return at == len(raw) or (at < len(raw) and (raw[at] in _FILLERS or raw[at : at + 4] in _TOP))


def _walk_cluster(raw: mmap.mmap, start: int) -> tuple[int, int | None]:
    """Position behind the cluster at `start`, and that of its last child if the chain breaks behind
    it."""
    size, at = _size(raw, start + 4)
    end, last = None if size is None else at + size, start
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
        last, at = at, body + child
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
            return int.from_bytes(raw[body : body + size], "big") if size <= 8 else None
        if raw[at] not in _FILLERS:
            return None
        at = body + size
    return None


def _next_cluster(raw: mmap.mmap, at: int) -> int:
    """Position of the next cluster that begins as one does and ends on an element; else the file's
    end."""
    while (at := raw.find(_CLUSTER, at)) >= 0:
        size, body = _size(raw, at + 4)
        whole = size is None or body + size > len(raw) or _is_top(raw, body + size)
        if whole and _timestamp(raw, at) is not None:
            return at
        at += 1
    return len(raw)
