"""ADTS, AC-3, AMR and MPEG audio, bare frames without a container: where the chain of frame headers
breaks."""

from __future__ import annotations

import itertools
import math
import mmap
from collections.abc import Callable

_RATES = (96000, 88200, 64000, 48000, 44100, 32000, 24000, 22050, 16000, 12000, 11025, 8000, 7350)
_AC3_RATES = (48000, 44100, 32000)
_AC3_KILOBITS = (32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 448, 512, 576, 640)
# By whether it is MPEG-1, and layer; the first place stands for a free format.
_MPEG_KILOBITS = {
    (True, 2): (0, 32, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384),
    (True, 3): (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
    (False, 2): (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
    (False, 3): (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
}
# Bytes of a frame by its type, header included; 0 for types that are not used.
_AMR = (13, 14, 16, 18, 20, 21, 27, 32, 6, 0, 0, 0, 0, 0, 0, 1)
_AMR_WB = (18, 24, 33, 37, 41, 47, 51, 59, 61, 6, 0, 0, 0, 0, 1, 1)
_AMR_MARGIN = 10
_SEARCHED = 65536


def first_break(path: str, form: str) -> float:
    """Seconds into an ADTS, AC-3 or AMR stream (FFmpeg's `form`) where a header isn't where the one before
    says.

    Infinity where all are, and for other formats. FFmpeg looks for the next header in silence, and what lies
    between is gone from the timeline without a trace. What comes before the first header (a stream tapped in
    mid-frame) and behind the last (a tag) is no break.
    """
    if form == "amr":
        return _amr_break(path)
    header = _HEADERS.get(form)
    if header is None:
        return math.inf
    with open(path, "rb") as handle, mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ) as raw:
        at, size, seconds, last = _id3_bytes(raw[:10]), len(raw), 0.0, 0.0
        at += max(0, _find_frame(raw[at : at + _SEARCHED], header))
        while at + 7 <= size:
            facts = header(raw[at : at + 7])
            if facts is None and (tag := _id3_bytes(raw[at : at + 10])):
                at += tag  # segments of a live stream begin with one each
                continue
            if facts is None:
                is_tail = at + _SEARCHED > size and _find_frame(raw[at:size], header) < 0
                return math.inf if is_tail else max(0.0, seconds - last)
            length, last = facts
            seconds += last
            at += length
    return math.inf


def bytes_before(path: str, form: str) -> int:
    """Bytes of no frame and no tag that a stream of bare frames begins with: FFmpeg takes some of them for
    frames."""
    header = _FRAMED.get(form)
    if header is None:
        return 0
    with open(path, "rb") as handle:
        raw = handle.read(_SEARCHED)
    return 0 if _id3_bytes(raw[:10]) else max(0, _find_frame(raw, header))


def _amr_break(path: str) -> float:
    """As `first_break`; some frames early, since one byte in twelve passes for a header (RFC 4867, 5.3)."""
    with open(path, "rb") as handle:
        raw = handle.read()
    at, lengths = (9, _AMR_WB) if raw.startswith(b"#!AMR-WB\n") else (6, _AMR)
    for frame in itertools.count():
        if at >= len(raw):
            return math.inf
        length = lengths[raw[at] >> 3 & 15]
        if raw[at] & 0x83 or not length:
            return max(0, frame - _AMR_MARGIN) * 0.02
        at += length
    return math.inf


def _adts(head: bytes) -> tuple[int, float] | None:
    """Bytes and seconds of the frame that a header begins; None where it is no header."""
    length, rate_index = (head[3] & 3) << 11 | head[4] << 3 | head[5] >> 5, head[2] >> 2 & 15
    if head[0] != 0xFF or head[1] & 0xF6 != 0xF0 or length < 7 or rate_index >= len(_RATES):
        return None
    return length, 1024 * ((head[6] & 3) + 1) / _RATES[rate_index]


def _ac3(head: bytes) -> tuple[int, float] | None:
    """As `_adts`, for AC-3 and E-AC-3 (ETSI TS 102 366, 4.4.1 and E.1.2). Frames of dependent streams take no
    time."""
    version, code = head[5] >> 3, head[4] >> 6
    if head[:2] != b"\x0b\x77" or version > 16:
        return None
    if version > 10:
        length = 2 * (((head[2] & 7) << 8 | head[3]) + 1)
        rate = _AC3_RATES[code] if code < 3 else _AC3_RATES[min(head[4] >> 4 & 3, 2)] // 2
        blocks = (1, 2, 3, 6)[head[4] >> 4 & 3] if code < 3 else 6
        independent = head[2] >> 6 != 1 and head[2] >> 3 & 7 == 0
        return length, 256 * blocks / rate * independent
    if code > 2 or (head[4] & 63) >> 1 >= len(_AC3_KILOBITS):
        return None
    kilobits = _AC3_KILOBITS[(head[4] & 63) >> 1]
    words = kilobits * 96000 // _AC3_RATES[code] + (head[4] & 1 if code == 1 else 0)
    return 2 * words, 1536 / (_AC3_RATES[code] >> max(0, version - 8))


def _mpeg(head: bytes) -> tuple[int, float] | None:
    """As `_adts`, for MPEG-1, 2 and 2.5 audio, layers II and III. None for free formats, and for layer I."""
    word = int.from_bytes(head[:4], "big")
    version, layer = word >> 19 & 3, 4 - (word >> 17 & 3)
    kilobits = _MPEG_KILOBITS.get((version == 3, layer), (0,) * 15)
    if word >> 21 != 0x7FF or version == 1 or word >> 10 & 3 == 3 or word >> 12 & 15 in (0, 15) or layer < 2:
        return None
    rate = (44100, 48000, 32000)[word >> 10 & 3] >> {3: 0, 2: 1, 0: 2}[version]
    samples = 576 if layer == 3 and version != 3 else 1152
    return samples * kilobits[word >> 12 & 15] * 125 // rate + (word >> 9 & 1), samples / rate


_HEADERS = {"aac": _adts, "ac3": _ac3, "eac3": _ac3}
_FRAMED = {**_HEADERS, "mp3": _mpeg}  # a break in MP3 is told by its undecodable packets instead


def frame_bytes(head: bytes, form: str) -> int | None:
    """Bytes of the frame whose first 7 are `head`, in FFmpeg's format `form`; None where that can't be
    told."""
    header = _FRAMED.get(form)
    facts = header(head) if header and len(head) >= 7 else None
    return facts[0] if facts else None


def _id3_bytes(head: bytes) -> int:
    if head[:3] != b"ID3" or len(head) < 10:
        return 0
    return 10 + (head[6] << 21 | head[7] << 14 | head[8] << 7 | head[9])


def _find_frame(raw: bytes, header: Callable[[bytes], tuple[int, float] | None]) -> int:
    """Place of the first header that is followed by another one, or by the end; -1 where there is none."""
    mark = b"\x0b\x77" if header is _ac3 else b"\xff"
    at = raw.find(mark)
    while 0 <= at < len(raw) - 6:
        facts = header(raw[at : at + 7])
        if facts is not None:
            follows = raw[at + facts[0] : at + facts[0] + 7]
            if len(follows) < 7 or header(follows) is not None:
                return at
        at = raw.find(mark, at + 1)
    return -1
