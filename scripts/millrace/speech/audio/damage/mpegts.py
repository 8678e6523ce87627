"""Breaks in the packets of one track of an MPEG transport stream (ISO 13818-1, 2.4.3)."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

_SYNC = 0x47
_BYTES = 188  # of a packet
_BEGINS, _IS_BAD = 0x40, 0x80  # bits of a packet's second byte
_UNBOUNDED = -(1 << 39)


def find_breaks(raw: mmap.mmap, pid: int, chunk: int = 1 << 16) -> list[tuple[int, int]]:
    """Breaks [start, stop) of one PID, in order: from the PES packet that is damaged to the one
    after the next.

    `chunk`: how many packets are looked at together, so that memory does not grow with the file.
    """
    walk = _Walk(raw)
    for packet in _packets(raw, pid, chunk):
        if packet is None:
            walk.lose()
        else:
            walk.take(packet)
    return walk.end()


class _Packet(NamedTuple):
    """A packet with payload."""

    place: int  # in the file
    stride: int  # distance to the packet before
    flags: int  # of its second byte
    counter: int  # modulo 16
    body: int  # bytes before the payload


class _Walk:
    """Follows the packets of a PID, and the PES packets that they carry."""

    def __init__(self, raw: mmap.mmap) -> None:
        self._raw = raw
        self._breaks: list[tuple[int, int]] = []
        self._pes = -1  # position of the newest PES packet
        self._counter = -1  # of the newest packet; -1: unknown
        # Bytes that the PES packet still lacks; _UNBOUNDED or less if it states no length.
        self._due = 0
        self._open: int | None = None  # where a break began that has not ended
        self._clean = 0  # PES packets that have begun since

    def lose(self) -> None:
        """Between two packets, bytes are lost, added or overwritten."""
        self._break(max(self._pes, 0))
        self._due = 0
        self._counter = -1

    def take(self, packet: _Packet) -> None:
        begins = bool(packet.flags & _BEGINS)
        if self._pes < 0 and not begins:
            # A recording of a running stream begins with the rest of a PES packet.
            return
        if packet.flags & _IS_BAD or not self._counts_on(packet, begins):
            if self._is_repeated(packet):
                self._clean = 0
            else:
                self._break(max(self._pes, 0))
        self._counter = packet.counter
        if begins:
            self._begin_pes(packet)
        self._due -= max(0, _BYTES - packet.body)
        if _UNBOUNDED < self._due < 0:  # it holds more than it states
            self._break(self._pes)

    def end(self) -> list[tuple[int, int]]:
        """The breaks; one that is open lasts until the end of the file."""
        if self._open is not None:
            return [*self._breaks, (self._open, len(self._raw))]
        return self._breaks

    def _break(self, start: int) -> None:
        if self._open is None:
            self._open = start
        self._clean = 0

    def _counts_on(self, packet: _Packet, begins: bool) -> bool:
        if self._counter < 0 or packet.counter == (self._counter + 1) % 16:
            return True
        # Behind a PES packet that holds all its bytes, files are joined.
        return begins and self._due == 0

    def _is_repeated(self, packet: _Packet) -> bool:
        """Whether it is sent twice, as streams may."""
        if packet.counter != self._counter:
            return False
        at = packet.place
        before = at - packet.stride
        return self._raw[before : before + _BYTES] == self._raw[at : at + _BYTES]

    def _begin_pes(self, packet: _Packet) -> None:
        if self._due > 0 and self._open is None:
            self._open = self._pes
        start = packet.place + packet.body + 4
        stop = packet.place + min(packet.body + 6, _BYTES)
        length = int.from_bytes(self._raw[start:stop], "big")
        self._due = length + 6 if length else 2 * _UNBOUNDED
        self._pes = packet.place
        if self._open is None:
            return
        self._clean += 1
        if self._clean > 1:
            self._breaks.append((self._open, packet.place))
            self._open = None
            self._clean = 0


def _packets(raw: mmap.mmap, pid: int, chunk: int) -> Iterator[_Packet | None]:
    """The packets of a PID that have payload; None where the next packet is not behind the one
    before."""
    view = np.frombuffer(raw, np.uint8)
    stride, at = _stride(view)
    while stride and at + _BYTES <= len(view):
        count = min((len(view) - at - _BYTES) // stride + 1, chunk)
        grid = np.lib.stride_tricks.as_strided(
            view[at:], (count, _BYTES), (stride, 1), writeable=False
        )
        bad = np.flatnonzero(grid[:, 0] != _SYNC)
        sound = int(bad[0]) if len(bad) else count
        heads = grid[:sound, :5].astype(np.int32)
        has_pid = (heads[:, 1] & 31) << 8 | heads[:, 2] == pid
        has_payload = heads[:, 3] & 0x10 != 0
        numbers = np.flatnonzero(has_pid & has_payload)
        heads = heads[numbers]
        fields = (
            (numbers * stride + at).tolist(),
            (heads[:, 1] & 0xC0).tolist(),
            (heads[:, 3] & 15).tolist(),
            (4 + (heads[:, 3] & 0x20 != 0) * (1 + heads[:, 4])).tolist(),
        )
        for place, flags, counter, body in zip(*fields, strict=True):
            yield _Packet(place, stride, flags, counter, body)
        at += count * stride
        if sound < count:
            yield None
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
