"""Breaks in the chain of pages of Ogg (RFC 3533)."""

from __future__ import annotations

import mmap
import zlib

from millrace.speech.audio.damage.breaks import Break

# Headers and the first samples: if these are lost, nothing tells where the recording began.
_CHECKED_PAGES = 4
_REVERSED_BITS = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))
# A live stream is joined when it has run for a minute at least (granules of Opus).
_LIVE_GRANULE = 60 * 48000


def find_breaks(raw: mmap.mmap, _stream_id: int = 0) -> list[Break]:
    """Breaks of a file, in order: bytes that are no page, pages behind a lost one, damaged
    headers."""
    breaks: list[Break] = []
    numbers: dict[bytes, int] = {}  # of each stream's newest page
    headers: set[bytes] = set()  # streams that have shown nothing but headers
    # What comes before the first page (an ID3 tag) does not belong to the stream.
    at = max(0, raw.find(b"OggS\0\2")) if raw[:4] != b"OggS" else 0
    while at < len(raw):
        head = raw[at : at + 27]
        if head[:5] != b"OggS\0" or len(head) < 27:
            after = _next_page(raw, at + 1)
            if len(raw) - at > 27 or after < len(raw):
                breaks.append(Break(at, after))
            at = after
            continue
        after = at + 27 + head[26] + sum(raw[at + 27 : at + 27 + head[26]])
        serial, number = head[14:18], int.from_bytes(head[18:22], "little")
        granule = int.from_bytes(head[6:14], "little")
        is_joined_live = serial in headers and granule > _LIVE_GRANULE
        if not head[5] & 2 and number != numbers.get(serial, -2) + 1 and not is_joined_live:
            # Pages of a stream whose beginning is lost can't be placed.
            breaks.append(Break(at, at + 1, serial in numbers))
        if number < _CHECKED_PAGES and after <= len(raw) and not _is_intact(raw[at:after]):
            breaks.append(Break(at, after, False))
        numbers[serial] = number
        headers = headers - {serial} if granule else headers | {serial}
        if raw[after : after + 4] != b"OggS" and after < len(raw) and not _is_intact(raw[at:after]):
            # This page includes the header of the next one, or its own header is damaged.
            after = _next_page(raw, at + 4)
            breaks.append(Break(at, after))
        at = after
    return breaks


def _next_page(raw: mmap.mmap, at: int) -> int:
    place = raw.find(b"OggS\0", at)
    return len(raw) if place < 0 else place


def _is_intact(page: bytes) -> bool:
    """Whether the checksum of a page is right."""
    # zlib's CRC-32 has the same polynomial, but reverses the bits of each byte, and inverts its
    # register.
    content = page[:22] + bytes(4) + page[26:]
    reversed_crc = zlib.crc32(content.translate(_REVERSED_BITS), 0xFFFFFFFF) ^ 0xFFFFFFFF
    return int(f"{reversed_crc:032b}"[::-1], 2) == int.from_bytes(page[22:26], "little")
