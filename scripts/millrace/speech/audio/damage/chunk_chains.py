"""Where the chain of chunks or packets of AVI, ASF and RealMedia breaks: what follows has no reliable place
there."""

from __future__ import annotations

import mmap
from dataclasses import dataclass


@dataclass(frozen=True)
class Break:
    """Bytes [start, stop) that can't be placed. `recovers`: the time stamps behind it can be believed
    again."""

    start: int
    stop: int
    recovers: bool = True


_AVI_TRACKS = (b"wb", b"dc", b"db", b"pc", b"tx", b"iv")
_AVI_OTHERS = (b"idx1", b"JUNK", b"junk", b"PAD ", b"INFO", b"_PMX")


def avi(raw: mmap.mmap) -> list[Break]:
    """AVI has no time stamps: chunks are counted, so that one that is lost moves all that follow."""
    at = last = max(0, raw.find(b"RIFF", 0, 1 << 16))
    while at + 8 <= len(raw):
        name, size = raw[at : at + 4], int.from_bytes(raw[at + 4 : at + 8], "little")
        if name == b"RIFF" or (name == b"LIST" and raw[at + 8 : at + 12] in (b"movi", b"rec ")):
            at, last = at + 12, at
            continue
        track = name[:2].isdigit() and name[2:] in _AVI_TRACKS
        index = name[:2] == b"ix" and name[2:].isdigit()
        if not (track or index or name == b"LIST" or name in _AVI_OTHERS):
            # What is behind the index (a tag, zeros) is no audio.
            return [] if raw[last : last + 4] == b"idx1" else [Break(last, len(raw), False)]
        if at + 8 + size > len(raw):
            return [Break(at, len(raw), False)]
        last, at = at, at + 8 + size + size % 2
    return []


_ASF_FILE = bytes.fromhex("a1dcab8c47a9cf118ee400c00c205365")
_ASF_DATA = bytes.fromhex("3626b2758e66cf11a6d900aa0062ce6c")
_ASF_CHECK = b"\x82\0\0"


def asf(raw: mmap.mmap) -> list[Break]:
    """Packets of ASF are of one size: where they leave that grid, FFmpeg loses some without a word."""
    facts, begin = raw.find(_ASF_FILE, 0, 1 << 20), raw.find(_ASF_DATA, 0, 1 << 24)
    if facts < 0 or begin < 0:
        return []
    least, most = (int.from_bytes(raw[facts + at : facts + at + 4], "little") for at in (92, 96))
    first, stated = begin + 50, int.from_bytes(raw[begin + 16 : begin + 24], "little")
    if least != most or least < 16 or raw[first : first + 3] != _ASF_CHECK:
        return []
    end = min(len(raw), begin + stated) if stated > 50 else len(raw)
    found: list[Break] = []
    for at in range(first, end - least + 1, least):
        if raw[at : at + 3] == _ASF_CHECK:
            continue
        if raw[at + least : at + least + 3] != _ASF_CHECK and at + 2 * least <= end:
            return [*found, Break(at - least, len(raw), False)]
        found.append(Break(at, at + least))
    return found


def realmedia(raw: mmap.mmap) -> list[Break]:
    """Packets state their length; FFmpeg looks for the next one in whatever it finds."""
    at = 0
    while raw[at : at + 4] != b"DATA":
        size = int.from_bytes(raw[at + 4 : at + 8], "big")
        if size < 8 or at + 8 > len(raw):
            return []
        at += size
    count = int.from_bytes(raw[at + 10 : at + 14], "big")
    at, last = at + 18, at
    for _ in range(count):
        length = int.from_bytes(raw[at + 2 : at + 4], "big")
        if at + 4 > len(raw):
            break
        if raw[at : at + 2] not in (b"\0\0", b"\0\1") or length < 12:
            return [Break(last, len(raw), False)]
        last, at = at, at + length
    return []
