"""Breaks in the packets of one track of an MPEG transport stream (ISO 13818-1, 2.4.3)."""

from __future__ import annotations

import mmap
from collections.abc import Iterator

import numpy as np

_SYNC = 0x47
_BEGINS, _IS_BAD = 0x40, 0x80  # bits of a packet's second byte
_UNBOUNDED = -(1 << 39)


def find_breaks(raw: mmap.mmap, pid: int, chunk: int = 1 << 16) -> list[tuple[int, int]]:
    """Breaks [start, stop) of one PID, in order: from the PES packet that is damaged to the one after
    the next.

    `chunk`: how many packets are looked at together, so that memory does not grow with the file.
    """
    breaks: list[tuple[int, int]] = []
    pes = -1  # position of the newest PES packet
    counter = -1  # of the newest packet; -1: unknown
    due = 0  # bytes that the PES packet still lacks; _UNBOUNDED or less if it states no length
    pending: int | None = None  # where a break began that is still open
    clean = 0  # PES packets that have begun since
    for place, stride, flags, number, body in _packets(raw, pid, chunk):
        if place < 0:  # between two packets, bytes are lost, added or overwritten
            pending = max(pes, 0) if pending is None else pending
            clean, due, counter = 0, 0, -1
            continue
        begins = flags & _BEGINS
        if (
            pes < 0 and not begins
        ):  # a recording of a running stream begins with the rest of a PES packet
            continue

        # Packets are counted modulo 16. One that is sent twice is no break, nor is a new count
        # behind a PES packet that holds all its bytes: there, files are joined.
        counts_on = counter < 0 or number == (counter + 1) % 16 or (begins and due == 0)
        if flags & _IS_BAD or not counts_on:
            before = raw[place - stride : place - stride + 188]
            if pending is None and not (number == counter and before == raw[place : place + 188]):
                pending = max(pes, 0)
            clean = 0
        counter = number

        if begins:
            if due > 0 and pending is None:
                pending = pes
            length = int.from_bytes(raw[place + body + 4 : place + min(body + 6, 188)], "big")
            due = length + 6 if length else 2 * _UNBOUNDED
            pes = place
            clean += pending is not None
            if clean > 1:
                breaks.append((pending, place))
                pending, clean = None, 0
        due -= max(0, 188 - body)
        if _UNBOUNDED < due < 0:  # it holds more than it states
            pending, clean = pes if pending is None else pending, 0
    return breaks if pending is None else [*breaks, (pending, len(raw))]


def _packets(raw: mmap.mmap, pid: int, chunk: int) -> Iterator[tuple[int, int, int, int, int]]:
    """Position, distance to the packet before, flags, counter and start of the payload of a PID's
    packets.

    Packets without payload are left out. Where the next packet is not behind the one before,
    position is -1.
    """
    view = np.frombuffer(raw, np.uint8)
    stride, at = _stride(view)
    while stride and at + 188 <= len(view):
        count = min((len(view) - at - 188) // stride + 1, chunk)
        grid = np.lib.stride_tricks.as_strided(
            view[at:], (count, 188), (stride, 1), writeable=False
        )
        bad = np.flatnonzero(grid[:, 0] != _SYNC)
        sound = int(bad[0]) if len(bad) else count
        heads = grid[:sound, :5].astype(np.int32)
        has_pid = (heads[:, 1] & 31) << 8 | heads[:, 2] == pid
        numbers = np.flatnonzero(has_pid & (heads[:, 3] & 0x10 != 0))
        heads = heads[numbers]
        bodies = 4 + (heads[:, 3] & 0x20 != 0) * (1 + heads[:, 4])
        columns = (numbers * stride + at, heads[:, 1] & 0xC0, heads[:, 3] & 15, bodies)
        for place, flags, number, body in zip(
            *(column.tolist() for column in columns), strict=True
        ):
            yield place, stride, flags, number, body
        at += count * stride
        if sound < count:
            yield -1, 0, 0, 0, 0
            at = _resync(view, at - (count - sound + 1) * stride + 1, stride)


def _stride(view: np.ndarray) -> tuple[int, int]:
    """Bytes from packet to packet (192: with a time code, 204: with parity), place of the first; or
    0, 0."""
    head = view[: 204 * 12]
    for at in range(204):
        for stride in (188, 192, 204):
            if len(head) > at + 3 * stride and (head[at::stride] == _SYNC).all():
                return stride, at
    return 0, 0


def _resync(view: np.ndarray, at: int, stride: int) -> int:
    """Position of the next run of packets; the file's end if there is none."""
    while at + 188 <= len(view):
        hits = np.flatnonzero(view[at : at + 65536] == _SYNC)
        for hit in (hits + at).tolist():
            if (view[hit : hit + 5 * stride : stride] == _SYNC).all():
                return hit
        at += 65536
    return len(view)
