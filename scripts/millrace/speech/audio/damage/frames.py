"""Headers of bare frames, ADTS and MPEG audio without a container, and where their chain breaks."""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable
from typing import NamedTuple

_RATES = (96000, 88200, 64000, 48000, 44100, 32000, 24000, 22050, 16000, 12000, 11025, 8000, 7350)
# By whether it is MPEG-1, and layer; the first place stands for a free format.
_MPEG_KILOBITS = {
    (True, 2): (0, 32, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384),
    (True, 3): (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
    (False, 2): (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
    (False, 3): (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
}
# Of MPEG-1; and how often they are halved for each version.
_MPEG_RATES = (44100, 48000, 32000)
_MPEG_HALVINGS = {3: 0, 2: 1, 0: 2}
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
        return _first_break(raw)


def _first_break(raw: mmap.mmap) -> float:
    size = len(raw)
    at = _id3_bytes(raw[:10])
    first = _find_frame(raw[at : at + _SEARCHED], _adts)
    at += max(0, first)
    seconds = 0.0
    length = 0.0
    while at + _HEADER_BYTES <= size:
        frame = _adts(raw[at : at + _HEADER_BYTES])
        if frame is not None:
            at += frame.size
            seconds += frame.seconds
            length = frame.seconds
            continue
        tag = _id3_bytes(raw[at : at + 10])
        if tag:  # segments of a live stream begin with one each
            at += tag
            continue
        is_near_end = at + _SEARCHED > size
        if is_near_end and _find_frame(raw[at:size], _adts) < 0:
            return math.inf
        # The frame before it may be damaged as well.
        return max(0.0, seconds - length)
    return math.inf


def bytes_before(path: str, container_format: str) -> int:
    """Bytes before the first frame that are no tag either: FFmpeg takes some of them for frames."""
    if container_format not in _HEADERS:
        return 0
    with open(path, "rb") as handle:
        raw = handle.read(_SEARCHED)
    if _id3_bytes(raw):
        return 0
    return max(0, _find_frame(raw, _HEADERS[container_format]))


def is_one(packet: bytes, container_format: str) -> bool:
    """Whether a packet that can't be decoded is one frame all the same, by its header."""
    header = _HEADERS.get(container_format)
    if header is None or len(packet) < _HEADER_BYTES:
        return False
    frame = header(packet)
    return frame is not None and frame.size == len(packet)


class _Frame(NamedTuple):
    """What a header says of its frame: bytes with the header, and seconds."""

    size: int
    seconds: float


def _adts(head: bytes) -> _Frame | None:
    """The frame that an ADTS header (ISO 14496-3, 1.A.2) begins; None if it is none."""
    if head[0] != 0xFF or head[1] & 0xF6 != 0xF0:
        return None
    high_bits = head[3] & 3
    size = high_bits << 11 | head[4] << 3 | head[5] >> 5
    rate_index = head[2] >> 2 & 15
    if size < _HEADER_BYTES or rate_index >= len(_RATES):
        return None
    blocks = (head[6] & 3) + 1
    return _Frame(size, 1024 * blocks / _RATES[rate_index])


def _mpeg(head: bytes) -> _Frame | None:
    """As `_adts`, for MPEG-1, 2 and 2.5 audio, layers II and III. None for free formats, and for
    layer I."""
    word = int.from_bytes(head[:4], "big")
    version = word >> 19 & 3  # 3: MPEG-1, 2: MPEG-2, 0: MPEG-2.5
    layer = 4 - (word >> 17 & 3)
    bit_rate_index = word >> 12 & 15
    rate_index = word >> 10 & 3
    has_sync = word >> 21 == 0x7FF
    if not has_sync or version == 1 or layer not in (2, 3):
        return None
    if rate_index == 3 or bit_rate_index in (0, 15):
        return None

    is_first = version == 3
    kilobits = _MPEG_KILOBITS[is_first, layer][bit_rate_index]
    rate = _MPEG_RATES[rate_index] >> _MPEG_HALVINGS[version]
    samples = 576 if layer == 3 and not is_first else 1152
    padding = word >> 9 & 1
    return _Frame(samples * kilobits * 125 // rate + padding, samples / rate)


_HEADERS = {"aac": _adts, "mp3": _mpeg}  # by FFmpeg's name of the container format


def _id3_bytes(head: bytes) -> int:
    """Bytes of the ID3 tag that begins here; 0 if there is none."""
    if head[:3] != b"ID3" or len(head) < 10:
        return 0
    return 10 + (head[6] << 21 | head[7] << 14 | head[8] << 7 | head[9])


def _find_frame(raw: bytes, header: Callable[[bytes], _Frame | None]) -> int:
    """Position of the first header that is followed by another one, or by the end; -1 if there is
    none."""
    at = raw.find(b"\xff")
    while 0 <= at <= len(raw) - _HEADER_BYTES:
        frame = header(raw[at : at + _HEADER_BYTES])
        if frame is not None:
            behind = at + frame.size
            following = raw[behind : behind + _HEADER_BYTES]
            if len(following) < _HEADER_BYTES or header(following) is not None:
                return at
        at = raw.find(b"\xff", at + 1)
    return -1
