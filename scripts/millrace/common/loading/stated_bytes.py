"""How many bytes an Ogg or MP3 file has by what it says itself: decoders take what is left of a cut
one for the whole."""

from __future__ import annotations

import mmap
import struct

_OGG_HEAD = 27  # bytes of a page (RFC 3533) before the sizes of its segments
_XING_PLACES = (13, 21, 36)  # in an MP3's first frame: by its version and channels
_XING_END = 36 + 16


def ogg_bytes(raw: bytes | mmap.mmap) -> int:
    """The end of an Ogg file's last page, which lies behind the end of a file that was cut within
    it; 0 if the file does not consist of pages."""
    at = 0
    while at < len(raw):
        head = bytes(raw[at : at + _OGG_HEAD])
        if head[:4] != b"OggS"[: len(head)]:
            return 0
        if len(head) < _OGG_HEAD:
            return at + _OGG_HEAD
        count = head[-1]
        sizes = bytes(raw[at + _OGG_HEAD : at + _OGG_HEAD + count])
        at += _OGG_HEAD + count + sum(sizes)
    return at


def mp3_bytes(raw: bytes | mmap.mmap) -> int:
    """The bytes of an MP3 by its first frame, with the ID3 tag before that; 0 if it does not say,
    or is none."""
    tag = _tag_bytes(bytes(raw[:10]))
    frame = bytes(raw[tag : tag + _XING_END]).ljust(_XING_END, b"\0")
    if frame[:1] != b"\xff":
        return 0
    for place in _XING_PLACES:
        name, flags, _, stated = struct.unpack_from(">4sIII", frame, place)
        states_both = flags & 3 == 3  # frames, then bytes
        if name in (b"Xing", b"Info") and states_both:
            return tag + stated
    return 0


def _tag_bytes(head: bytes) -> int:
    """The bytes of the ID3 tag that a file begins with: its head, and four times 7 bits."""
    if head[:3] != b"ID3":
        return 0
    size = 0
    for byte in head[6:]:
        size = size << 7 | byte & 0x7F
    return len(head) + size
