"""The first break in the chain of pages of Ogg (RFC 3533)."""

from __future__ import annotations

import mmap
import zlib
from typing import NamedTuple

_HEADER_BYTES = 27
_REVERSED_BITS = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))


def find_break(raw: mmap.mmap) -> int | None:
    """Position of the first page that is damaged or follows lost ones, or of bytes that are none;
    None if all pages follow each other. Streams that are joined (chained) are no break."""
    numbers: dict[bytes, int] = {}  # of each stream's newest page
    # What comes before the first page (an ID3 tag) does not belong to the stream.
    at = 0
    if raw[:4] != b"OggS":
        at = max(0, raw.find(b"OggS\0\2"))
    while at + _HEADER_BYTES < len(raw):
        page = _Page.at(raw, at)
        if page is None:
            return at
        follows = page.number == numbers.get(page.serial, -2) + 1
        if not (page.begins or follows):
            return at
        # The last page may be cut off.
        if page.end <= len(raw) and not _is_intact(raw[at : page.end]):
            return at
        numbers[page.serial] = page.number
        at = page.end
    return None


class _Page(NamedTuple):
    """What the header of a page says; `end` is the position behind it."""

    serial: bytes
    number: int
    begins: bool
    end: int

    @classmethod
    def at(cls, raw: mmap.mmap, start: int) -> _Page | None:
        head = raw[start : start + _HEADER_BYTES]
        if head[:5] != b"OggS\0":
            return None
        sizes = raw[start + _HEADER_BYTES : start + _HEADER_BYTES + head[26]]
        return cls(
            serial=head[14:18],
            number=int.from_bytes(head[18:22], "little"),
            begins=bool(head[5] & 2),
            end=start + _HEADER_BYTES + head[26] + sum(sizes),
        )


def _is_intact(page: bytes) -> bool:
    """Whether the checksum of a page is right."""
    # zlib's CRC-32 has the same polynomial, but reverses the bits of each byte, and inverts its
    # register.
    content = page[:22] + bytes(4) + page[26:]
    reversed_crc = zlib.crc32(content.translate(_REVERSED_BITS), 0xFFFFFFFF) ^ 0xFFFFFFFF
    return int(f"{reversed_crc:032b}"[::-1], 2) == int.from_bytes(page[22:26], "little")
