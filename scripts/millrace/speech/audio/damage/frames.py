"""Headers of bare frames, ADTS and MPEG audio without a container, and where their chain breaks."""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable

_RATES = (96000, 88200, 64000, 48000, 44100, 32000, 24000, 22050, 16000, 12000, 11025, 8000, 7350)
# By whether it is MPEG-1, and layer; the first place stands for a free format.
_MPEG_KILOBITS = {
    (True, 2): (0, 32, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384),
    (True, 3): (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
    (False, 2): (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
    (False, 3): (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
}
_HEADER_BYTES = 7
_SEARCHED = 65536


def first_break(path: str, container_format: str) -> float:
    """Seconds into an ADTS stream at which a header isn't where the one before it says.

    Infinity if all are, and for other formats: a break in MP3 shows as undecodable packets. FFmpeg
    searches for the next ADTS header without an error, and what lies between is missing from the
    timeline. What comes before the first header (a stream joined within a frame) and behind the
    last (a tag) is no break.
    """
    if container_format != "aac":
        return math.inf
    with open(path, "rb") as handle, mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ) as raw:
        at, size, seconds, length = _id3_bytes(raw[:10]), len(raw), 0.0, 0.0
        at += max(0, _find_frame(raw[at : at + _SEARCHED], _adts))
        while at + _HEADER_BYTES <= size:
            frame = _adts(raw[at : at + _HEADER_BYTES])
            if frame is None and (tag := _id3_bytes(raw[at : at + 10])):
                at += tag  # segments of a live stream begin with one each
                continue
            if frame is None:
                is_tail = at + _SEARCHED > size and _find_frame(raw[at:size], _adts) < 0
                # The frame before it may be damaged as well.
                return math.inf if is_tail else max(0.0, seconds - length)
            at, length = at + frame[0], frame[1]
            seconds += length
    return math.inf


def bytes_before(path: str, container_format: str) -> int:
    """Bytes before the first frame that are no tag either: FFmpeg takes some of them for frames."""
    if container_format not in _HEADERS:
        return 0
    with open(path, "rb") as handle:
        raw = handle.read(_SEARCHED)
    return 0 if _id3_bytes(raw) else max(0, _find_frame(raw, _HEADERS[container_format]))


def is_one(packet: bytes, container_format: str) -> bool:
    """Whether a packet that can't be decoded is one frame all the same, by its header."""
    header = _HEADERS.get(container_format)
    if header is None or len(packet) < _HEADER_BYTES:
        return False
    frame = header(packet)
    return frame is not None and frame[0] == len(packet)


def _adts(head: bytes) -> tuple[int, float] | None:
    """Bytes and seconds of the frame that an ADTS header (ISO 14496-3, 1.A.2) begins; None if it is
    none."""
    length, rate_index = (head[3] & 3) << 11 | head[4] << 3 | head[5] >> 5, head[2] >> 2 & 15
    if (
        head[0] != 0xFF
        or head[1] & 0xF6 != 0xF0
        or length < _HEADER_BYTES
        or rate_index >= len(_RATES)
    ):
        return None
    return length, 1024 * ((head[6] & 3) + 1) / _RATES[rate_index]


def _mpeg(head: bytes) -> tuple[int, float] | None:
    """As `_adts`, for MPEG-1, 2 and 2.5 audio, layers II and III. None for free formats, and for
    layer I."""
    word = int.from_bytes(head[:4], "big")
    version, layer = word >> 19 & 3, 4 - (word >> 17 & 3)
    is_reserved = (
        version == 1 or word >> 10 & 3 == 3 or word >> 12 & 15 in (0, 15) or layer not in (2, 3)
    )
    if word >> 21 != 0x7FF or is_reserved:
        return None
    kilobits = _MPEG_KILOBITS[version == 3, layer]
    rate = (44100, 48000, 32000)[word >> 10 & 3] >> {3: 0, 2: 1, 0: 2}[version]
    samples = 576 if layer == 3 and version != 3 else 1152
    return samples * kilobits[word >> 12 & 15] * 125 // rate + (word >> 9 & 1), samples / rate


_HEADERS = {"aac": _adts, "mp3": _mpeg}  # by FFmpeg's name of the container format


def _id3_bytes(head: bytes) -> int:
    is_tag = head[:3] == b"ID3" and len(head) >= 10
    return 10 + (head[6] << 21 | head[7] << 14 | head[8] << 7 | head[9]) if is_tag else 0


def _find_frame(raw: bytes, header: Callable[[bytes], tuple[int, float] | None]) -> int:
    """Position of the first header that is followed by another one, or by the end; -1 if there is
    none."""
    at = raw.find(b"\xff")
    while 0 <= at <= len(raw) - _HEADER_BYTES:
        frame = header(raw[at : at + _HEADER_BYTES])
        if frame is not None:
            following = raw[at + frame[0] : at + frame[0] + _HEADER_BYTES]
            if len(following) < _HEADER_BYTES or header(following) is not None:
                return at
        at = raw.find(b"\xff", at + 1)
    return -1
