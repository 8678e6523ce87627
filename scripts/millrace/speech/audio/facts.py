"""Facts of a recording that FFmpeg reads: how long its timeline really is, when the length that it
states is trusted, and what is warned of."""

from __future__ import annotations

import contextlib
import os
import struct

import av

from millrace.speech.audio.packets import discarded
from millrace.speech.audio.pcm import size_warnings
from millrace.speech.audio.recording import AudioInfo
from millrace.speech.audio.stream import StreamRecording
from millrace.speech.audio.timeline import (
    MAX_RESETTABLE_GAP,
    MAX_UNSTATED_GAP,
    RESETTABLE,
    STAMPED,
)

# Samples that encoders put before the sound, at most (AAC: Apple's).
_DELAYS = {
    "mp3": 1105,
    "mp2": 481,
    "aac": 2112,
    "aac_latm": 2112,
    "dts": 512,
    "ra_144": 160,
}
_STATES_DURATION = STAMPED - RESETTABLE


def stream_info(path: str | os.PathLike) -> AudioInfo:
    """Decode the beginning, and measure the duration if what is stated can't be trusted."""
    with StreamRecording(path) as stream, contextlib.closing(stream.blocks()) as trial:
        stated = _stated_duration(stream)
        next(trial)
    # What is stated holds if the last 10 s of packets agree.
    if stated is not None and _tail_agrees(path, stated):
        duration = stated
    else:
        duration = _count_packets(path)
    warnings = []
    if stream.codec_name in _DELAYS and not stream.states_delay:
        delay = 1000 * _DELAYS[stream.codec_name] / stream.sample_rate
        name = os.path.basename(stream.path)
        late = f"all of {name} is up to {delay:.0f} ms later than in the original"
        warnings.append(f"no_encoder_delay: {stream.codec_name} states none, so {late}")
    if stream.container_format == "wav":
        warnings += size_warnings(stream.path)
    return AudioInfo(duration, tuple(warnings))


def _stated_duration(stream: StreamRecording) -> float | None:
    """Seconds of the timeline by the header; None if it states none, or none that is reliable."""
    track = stream.stream
    is_ogg = stream.container_format == "ogg"
    if stream.container_format not in _STATES_DURATION or (is_ogg and _is_chained(stream.path)):
        return None
    seconds = (stream.container.duration or 0) / 1e6
    if track.duration is not None and track.time_base is not None:
        seconds = float(track.duration * track.time_base)
    header = stream.codec.extradata or b""
    if is_ogg and stream.codec_name == "opus" and len(header) >= 12:
        seconds -= struct.unpack("<H", header[10:12])[0] / 48000  # pre-skip (RFC 7845, 5.1)
    return seconds if seconds > 0 else None


def _tail_agrees(path: str | os.PathLike, stated: float) -> bool:
    """Whether the last packets end where the stated duration does, without an error."""
    with StreamRecording(path) as stream:
        begin = float((stream.stream.start_time or 0) * (stream.stream.time_base or 0))
        end = None
        try:
            if stated > 20:
                stream.container.seek(int((begin + stated - 10) * 1e6))
            for packet in stream.packets():
                if packet.pts is None:
                    continue
                packet_end = float((packet.pts + (packet.duration or 0)) * packet.time_base)
                if end is not None and packet_end < end - 1.0:
                    return False  # another recording is joined on
                end = max(end or 0.0, packet_end)
        except (av.error.FFmpegError, OSError):
            return False
        return not stream.errors and end is not None and abs(end - begin - stated) < 0.1


def _count_packets(path: str | os.PathLike) -> float:
    """Seconds of the timeline by the stamps and durations of all packets, undecoded."""
    seconds = 0.0
    due = None
    last = 0.0
    with StreamRecording(path) as stream:
        is_resettable = stream.container_format in RESETTABLE
        limit = MAX_RESETTABLE_GAP if is_resettable else MAX_UNSTATED_GAP
        tick = float(
            stream.stream.time_base or 0
        )  # not the packet's: fractions are slower than reading
        for packet in stream.packets():
            if packet.size == 0:
                continue
            seconds -= sum(discarded(packet)) / (stream.codec.sample_rate or 48000)
            length = (packet.duration or 0) * tick
            if not 0 < length <= limit:
                length = last
            if packet.pts is None:
                seconds += length
                due = None if due is None else due + length
                continue
            now = packet.pts * tick
            # A gap counts as silence; stamps that step back, or jump far, begin anew.
            gap = 0.0 if due is None else now - due
            seconds += gap + length if -1.0 <= gap <= limit else length
            due = now + length
            last = length
    return max(seconds, 0.0)


def _is_chained(path: str) -> bool:
    """Whether the last page of an Ogg file belongs to another stream than those that begin at its
    start."""
    with open(path, "rb") as handle:
        head = handle.read(65536)
        handle.seek(max(0, os.path.getsize(path) - 131072))
        tail = handle.read()
    last_page = tail[tail.rfind(b"OggS") :]
    serial = last_page[14:18]
    return not serial or b"OggS\0\x02" not in head or serial not in head
