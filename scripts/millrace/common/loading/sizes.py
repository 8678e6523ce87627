"""How many bytes a file of sound says it has: decoders take what is left of a cut one for the
whole."""

from __future__ import annotations

import mmap

_OGG_HEAD = 27  # bytes of a page (RFC 3533) before the sizes of its segments
# By the first bytes (those of W64 are of a GUID): the container, where its size stands (backwards,
# if the last byte comes first), and how many bytes come before what that counts.
_SIZES = {
    b"FORM": ("AIFF", slice(4, 8), 8),
    b"RIFX": ("WAV", slice(4, 8), 8),
    b"RF64": ("RF64", slice(27, 19, -1), 8),
    b"riff": ("W64", slice(23, 15, -1), 0),
    b".snd": ("AU", slice(8, 12), 24),
}


def stated_bytes(raw: bytes | mmap.mmap) -> tuple[str, int]:
    """The container and its bytes by what it says; 0 if that was never filled in, and for others
    (a WAV says it twice, and its data chunk counts)."""
    if raw[:4] == b"OggS":
        return "Ogg", _ogg_bytes(raw)
    if raw[:4] == b"caff":
        return "CAF", _caf_bytes(raw)
    container, place, before = _SIZES.get(bytes(raw[:4]), ("", slice(0), 0))
    stated = bytes(raw[place])
    if not stated.strip(b"\xff"):
        return container, 0
    return container, int.from_bytes(stated) + before


def _ogg_bytes(raw: bytes | mmap.mmap) -> int:
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


def _caf_bytes(raw: bytes | mmap.mmap) -> int:
    """The end of a CAF's sound, which is its beginning, about, if the size was never filled in."""
    at = 8
    while (head := bytes(raw[at : at + 12]))[:4] not in (b"data", b""):
        at += 12 + int.from_bytes(head[4:])
    return at + 12 + int.from_bytes(head[4:], signed=True)
