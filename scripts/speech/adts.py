"""ADTS, the bare AAC stream of broadcasters: where its chain of headers breaks."""

from __future__ import annotations

import math
import mmap

_RATES = (96000, 88200, 64000, 48000, 44100, 32000, 24000, 22050, 16000, 12000, 11025, 8000, 7350)
_SEARCHED = 65536


def first_break(path: str) -> float:
    """Seconds into an ADTS stream after which a header is not where the one before says; infinity where all are.

    FFmpeg looks for the next header in silence, and what lies between is gone from the timeline without a trace. What
    comes before the first header (a stream tapped in mid-frame) and behind the last (a tag) is no break.
    """
    with open(path, "rb") as handle, mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ) as raw:
        at, size, seconds, last = _after_id3(raw), len(raw), 0.0, 0.0
        at += max(0, _find_frame(raw[at : at + _SEARCHED]))
        while at + 7 <= size:
            head = raw[at : at + 7]
            length = _frame_length(head)
            rate_index = head[2] >> 2 & 15
            if head[0] != 0xFF or head[1] & 0xF6 != 0xF0 or length < 7 or rate_index >= len(_RATES):
                is_tail = at + _SEARCHED > size and _find_frame(raw[at:size]) < 0
                return math.inf if is_tail else max(0.0, seconds - last)
            last = 1024 * ((head[6] & 3) + 1) / _RATES[rate_index]
            seconds += last
            at += length
    return math.inf


def _frame_length(head: bytes) -> int:
    return (head[3] & 3) << 11 | head[4] << 3 | head[5] >> 5


def _after_id3(raw: mmap.mmap) -> int:
    head = raw[:10]
    if head[:3] != b"ID3" or len(head) < 10:
        return 0
    return 10 + (head[6] << 21 | head[7] << 14 | head[8] << 7 | head[9])


def _find_frame(raw: bytes) -> int:
    """Place of the first header that is followed by another one, or by the end; -1 where there is none."""
    at = raw.find(b"\xff")
    while 0 <= at < len(raw) - 6:
        length = _frame_length(raw[at : at + 7])
        if raw[at + 1] & 0xF6 == 0xF0 and length >= 7 and raw[at + length : at + length + 1] in (b"\xff", b""):
            return at
        at = raw.find(b"\xff", at + 1)
    return -1
