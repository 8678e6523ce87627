"""Where the structure of a file breaks, for containers whose time stamps mislead behind damage; nothing is
decoded.

FFmpeg goes on behind damage without a word: the blocks of a Matroska cluster whose header is gone are stamped
as if they belonged to the cluster before, frames of an MPEG stream are stamped like others that are lost, and
what is there twice is played twice. So the chain of clusters, pages or packets is walked once, from header to
header.
"""

from __future__ import annotations

import functools
import mmap
from dataclasses import dataclass

import numpy as np

from millrace.speech.audio.damage import chunk_chains
from millrace.speech.audio.damage.chunk_chains import Break


def breaks(path: str, form: str, stream_id: int = 0) -> list[Break]:
    """Breaks of a file of FFmpeg's format `form`, in order; none where the format's structure isn't checked.

    `stream_id`: the PID of the audio in an MPEG transport stream.
    """
    chains = {"avi": chunk_chains.avi, "asf": chunk_chains.asf, "rm": chunk_chains.realmedia}
    finder = {"matroska,webm": _matroska, "ogg": _ogg, **chains}.get(form)
    if finder is None and form != "mpegts":
        return []
    with open(path, "rb") as handle, mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ) as raw:
        return _transport(raw, stream_id) if finder is None else finder(raw)


# Matroska
# ---------------------------------------------------------------------------------------------------------

_SEGMENT, _CLUSTER = b"\x18\x53\x80\x67", b"\x1f\x43\xb6\x75"
# SeekHead, Info, Tracks, Cues, Attachments, Chapters, Tags and another EBML head, for files one behind the
# other.
_TOP = {_CLUSTER, _SEGMENT} | {
    b"\x11\x4d\x9b\x74",
    b"\x15\x49\xa9\x66",
    b"\x16\x54\xae\x6b",
    b"\x1c\x53\xbb\x6b",
    b"\x19\x41\xa4\x69",
    b"\x10\x43\xa7\x70",
    b"\x12\x54\xc3\x67",
    b"\x1a\x45\xdf\xa3",
}
_FILLERS = (0xEC, 0xBF)  # Void, CRC-32
_IN_CLUSTER = {0xE7, 0xA3, 0xA0, 0xA7, 0xAB, 0xAF, *_FILLERS}


def _size(raw: mmap.mmap, at: int) -> tuple[int | None, int]:
    """An EBML size and the place behind it; None where it is unknown (a live stream), or no size."""
    if at >= len(raw) or not raw[at]:
        return None, at + 1
    length = 9 - raw[at].bit_length()
    value = int.from_bytes(raw[at : at + length], "big") & ((1 << 7 * length) - 1)
    return (None if value == (1 << 7 * length) - 1 else value), at + length


def _is_top(raw: mmap.mmap, at: int) -> bool:
    return at == len(raw) or (at < len(raw) and (raw[at] in _FILLERS or raw[at : at + 4] in _TOP))


def _walk_cluster(raw: mmap.mmap, start: int) -> tuple[int, int | None]:
    """Place behind the cluster at `start`, and that of the last child before its chain breaks (None: it does
    not)."""
    size, at = _size(raw, start + 4)
    end, last = None if size is None else at + size, start
    while at != end and at < len(raw):
        if raw[at] in _IN_CLUSTER:
            child, begin = _size(raw, at + 1)
        elif raw[at : at + 2] == b"\x58\x54":  # SilentTracks
            child, begin = _size(raw, at + 2)
        elif end is None and raw[at : at + 4] in _TOP:
            break
        else:
            return at, last
        if child is None or begin + child > min(len(raw), end or len(raw)):
            return at, at
        last, at = at, begin + child
    return at, None if end is None or at == end else last


def _timestamp(raw: mmap.mmap, start: int) -> int | None:
    """The stamp of a cluster, None where its first child is none (a CRC-32 may come before)."""
    at = _size(raw, start + 4)[1]
    for _ in range(3):
        if at >= len(raw):
            return None
        size, begin = _size(raw, at + 1)
        if size is None:
            return None
        if raw[at] == 0xE7:
            return int.from_bytes(raw[begin : begin + size], "big") if size <= 8 else None
        if raw[at] not in _FILLERS:
            return None
        at = begin + size
    return None


def _matroska(raw: mmap.mmap) -> list[Break]:
    found: list[Break] = []
    stamps: list[tuple[int, int, int]] = []  # place, segment and stamp of clusters
    segment = 0
    at = 0
    while at < len(raw):
        name = raw[at : at + 4]
        broken = None
        if name == _CLUSTER:
            size, begin = _size(raw, at + 4)
            stamp = _timestamp(raw, at)
            after = len(raw) + 1 if size is None else begin + size
            if stamp is None:
                broken = at
            else:
                stamps.append((at, segment, stamp))
                # Where a cluster ends on what may follow one, it is whole; else the break is somewhere
                # inside.
                if not _is_top(raw, after):
                    after, broken = _walk_cluster(raw, at)
                    if broken is None and not _is_top(raw, after):
                        broken = at
        elif name in _TOP or raw[at] in _FILLERS:
            wide = 4 if name in _TOP else 1
            size, begin = _size(raw, at + wide)
            segment += name == _SEGMENT  # files one behind the other begin anew
            after = begin if name == _SEGMENT else begin + (size or 0)
            sound = name == _SEGMENT or size is not None
            broken = None if sound and (after > len(raw) or _is_top(raw, after)) else at
        else:
            broken, after = at, at
        if broken is not None:
            after = _next_cluster(raw, max(at + 1, broken))
            found.append(Break(broken, after))
        at = after
    # Of two clusters in the wrong order, or one that is there twice, which one is right can't be seen.
    places = [stamp[0] for stamp in stamps] + [len(raw)]
    for i in range(1, len(stamps)):
        if stamps[i][1] == stamps[i - 1][1] and stamps[i][2] <= stamps[i - 1][2]:
            found.append(Break(places[i - 1], places[i + 1]))
    return sorted(found, key=lambda one: one.start)


def _next_cluster(raw: mmap.mmap, at: int) -> int:
    """Place of the next cluster that begins as one does and ends where another element begins, else the
    file's end."""
    while (at := raw.find(_CLUSTER, at)) >= 0:
        size, begin = _size(raw, at + 4)
        whole = size is None or begin + size > len(raw) or _is_top(raw, begin + size)
        if whole and _timestamp(raw, at) is not None:
            return at
        at += 1
    return len(raw)


# Ogg
# --------------------------------------------------------------------------------------------------------------

_CHECKED_PAGES = (
    4  # headers and the first samples: where these are lost, nothing tells where the recording began
)


@functools.cache
def _crc_table() -> list[int]:
    table = []
    for value in range(256):
        value <<= 24
        for _ in range(8):
            value = (value << 1 ^ (0x04C11DB7 if value & 0x80000000 else 0)) & 0xFFFFFFFF
        table.append(value)
    return table


def _page_is_sound(page: bytes) -> bool:
    table, crc = _crc_table(), 0
    for byte in page[:22] + bytes(4) + page[26:]:
        crc = (crc << 8 & 0xFFFFFFFF) ^ table[crc >> 24 ^ byte]
    return crc == int.from_bytes(page[22:26], "little")


def _is_tapped(head: bytes) -> bool:
    """Whether the first page behind the headers is that of a live stream: not just one or two pages are
    missing."""
    return int.from_bytes(head[6:14], "little") > 60 * 48000


def _ogg(raw: mmap.mmap) -> list[Break]:
    found: list[Break] = []
    sequences: dict[bytes, int] = {}
    headers: set[bytes] = set()  # streams that have shown nothing but headers
    # What comes before the beginning (an ID3 tag) is none of the stream.
    at = max(0, raw.find(b"OggS\0\2")) if raw[:4] != b"OggS" else 0
    while at < len(raw):
        head = raw[at : at + 27]
        if head[:5] != b"OggS\0" or len(head) < 27:
            after = raw.find(b"OggS\0", at + 1)
            after = len(raw) if after < 0 else after
            if len(raw) - at > 27 or after < len(raw):
                found.append(Break(at, after))
            at = after
            continue
        after = at + 27 + head[26] + sum(raw[at + 27 : at + 27 + head[26]])
        serial, number, begins = head[14:18], int.from_bytes(head[18:22], "little"), bool(head[5] & 2)
        if begins:
            sequences[serial] = number
        elif number != sequences.get(serial, -2) + 1 and not (serial in headers and _is_tapped(head)):
            # Pages of a stream whose beginning is gone can't be placed.
            found.append(Break(at, at + 1, serial in sequences))
        if number < _CHECKED_PAGES and after <= len(raw) and not _page_is_sound(raw[at:after]):
            found.append(Break(at, after, False))
        sequences[serial] = number
        headers = headers | {serial} if not any(head[6:14]) else headers - {serial}
        whole = raw[after : after + 4] == b"OggS" or after >= len(raw) or _page_is_sound(raw[at:after])
        at = after if whole else at + 4
        if at != after:
            # The page swallows the header of the next one, or its own header is damaged.
            start, at = at - 4, raw.find(b"OggS\0", at)
            at = len(raw) if at < 0 else at
            found.append(Break(start, at))
    return found


# MPEG transport streams
# -------------------------------------------------------------------------------------------

_UNBOUNDED = -(1 << 39)
_PACKETS = 1 << 16  # looked at together: memory does not grow with the file


@dataclass
class _Chain:
    """How far the packets of one PID are as they should be, and what of them is not."""

    found: list[Break]
    pes: int = -1  # place of the newest PES packet
    counter: int = -1  # of the newest packet
    due: int = 0  # bytes that the PES packet still lacks; _UNBOUNDED or less where it states no length
    pending: int | None = None  # where a break began that is still open
    clean: int = 0  # PES packets begun since

    def step(self, raw: mmap.mmap, place: int, step: int) -> None:
        """Take the packet at `place`."""
        packet = raw[place : place + 188]
        flags = packet[3] >> 4 & 3
        # A recording tapped in mid-stream begins with the rest of a PES packet.
        if not flags & 1 or (self.pes < 0 and not packet[1] & 0x40):
            return
        body = 4 + (1 + packet[4] if flags & 2 else 0)
        begins = bool(packet[1] & 0x40)
        counter = packet[3] & 15
        whole = begins and self.due == 0
        if packet[1] & 0x80 or (self.counter >= 0 and counter != (self.counter + 1) % 16 and not whole):
            repeated = counter == self.counter and raw[place - step : place - step + 188] == packet
            if self.pending is None and not repeated:
                self.pending = max(self.pes, 0)
            self.clean = 0
        self.counter = counter
        if begins:
            if self.due > 0 and self.pending is None:
                self.pending = self.pes
            length = int.from_bytes(packet[body + 4 : body + 6], "big")
            self.due = length + 6 if length else 2 * _UNBOUNDED
            self.pes = place
            if self.pending is not None:
                self.clean += 1
                if self.clean > 1:
                    self.found.append(Break(self.pending, place))
                    self.pending, self.clean = None, 0
        self.due -= max(0, 188 - body)
        if _UNBOUNDED < self.due < 0:
            self.pending, self.clean = self.pes if self.pending is None else self.pending, 0


def _transport(raw: mmap.mmap, stream_id: int) -> list[Break]:
    """Breaks of one PID: from the PES packet that is damaged to the one after the next."""
    view = np.frombuffer(raw, np.uint8)
    step, at = _stride(view)
    if not step:
        return []
    chain = _Chain([])
    try:
        while at + 188 <= len(view):
            count = min((len(view) - at - 188) // step + 1, _PACKETS)
            grid = np.lib.stride_tricks.as_strided(view[at:], (count, 188), (step, 1), writeable=False)
            bad = np.flatnonzero(grid[:, 0] != 0x47)
            sound = int(bad[0]) if len(bad) else count
            ids = (grid[:sound, 1].astype(np.int32) & 31) << 8 | grid[:sound, 2]
            mine = np.flatnonzero(ids == stream_id)
            places, whole = mine * step + at, _whole(grid[mine])
            i = 0
            while i < len(places):
                # What is whole, behind what is whole, needs no look at each packet.
                runs = (
                    whole.get(i) if chain.pending is None and (chain.due == 0 or chain.counter < 0) else None
                )
                if runs is None:
                    chain.step(raw, int(places[i]), step)
                    i += 1
                else:
                    chain.pes, chain.counter = int(places[runs[0]]), int(grid[mine[runs[1] - 1], 3] & 15)
                    chain.due, i = 0, runs[1]
            if sound == count:
                at += count * step
                continue
            if chain.pending is None:
                chain.pending = max(chain.pes, 0)
            chain.clean, chain.due, chain.counter = 0, 0, -1
            at = _resync(view, at + sound * step - step + 1, step)
    finally:
        del view
    if chain.pending is not None:
        chain.found.append(Break(chain.pending, len(raw)))
    return chain.found


def _whole(packets: np.ndarray) -> dict[int, tuple[int, int]]:
    """Runs of PES packets that are whole: number of the first packet -> numbers of the last PES' first, and
    of the end.

    `packets`: uint8 (n, 188), all of one PID. Whole is one whose packets all hold payload, count on from each
    other, and hold as many bytes as it states.
    """
    flags, begins = packets[:, 3] >> 4 & 3, np.flatnonzero(packets[:, 1] & 0x40)
    if len(begins) < 2:
        return {}
    body = 4 + (flags >= 2) * (1 + packets[:, 4].astype(np.int64))
    held = np.concatenate([[0], np.cumsum(np.maximum(0, 188 - body))])
    counts_on = (packets[1:, 3].astype(np.int16) - packets[:-1, 3] & 15) == 1
    wrong = (flags & 1 == 0) | (packets[:, 1] & 0x80 != 0) | ~np.concatenate([[True], counts_on])
    wrong[begins] = ((flags & 1 == 0) | (packets[:, 1] & 0x80 != 0))[begins]
    amiss = np.concatenate([[0], np.cumsum(wrong)])
    starts, ends = begins[:-1], begins[1:]
    at = np.minimum(body[starts], 182)
    stated = packets[starts, at + 4].astype(np.int64) << 8 | packets[starts, at + 5]
    good = (amiss[ends] == amiss[starts]) & (stated > 0) & (held[ends] - held[starts] == stated + 6)
    # Runs of good ones: each good one leads to the end of its run.
    edges = np.flatnonzero(np.diff(np.concatenate([[0], good.astype(np.int8), [0]])))
    return {
        int(starts[first]): (int(starts[last - 1]), int(ends[last - 1]))
        for first, last in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)
    }


def _stride(view: np.ndarray) -> tuple[int, int]:
    """Size of the packets (192 with a time code, 204 with parity) and place of the first; zeros where neither
    shows."""
    head = view[: 204 * 12]
    for at in range(204):
        for step in (188, 192, 204):
            if len(head) > at + 3 * step and (head[at::step] == 0x47).all():
                return step, at
    return 0, 0


def _resync(view: np.ndarray, at: int, step: int) -> int:
    """Place of the next run of packets; the file's end where there is none."""
    while at + 188 <= len(view):
        hits = np.flatnonzero(view[at : at + 65536] == 0x47)
        for hit in (hits + at).tolist():
            if (view[hit : hit + 5 * step : step] == 0x47).all():
                return hit
        at += 65536
    return len(view)
