"""How many bytes an Ogg file has by its pages: decoders take what is left of a cut one for the
whole."""

from __future__ import annotations

import mmap

_OGG_HEAD = 27  # bytes of a page (RFC 3533) before the sizes of its segments


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
