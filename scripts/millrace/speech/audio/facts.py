"""Facts of a recording that FFmpeg reads: codec, rate, and how long its timeline really is."""

from __future__ import annotations

import itertools
import os
import struct

import av

from millrace.speech.audio.packets import discarded
from millrace.speech.audio.pcm import loose_ends
from millrace.speech.audio.recording import AudioInfo, opposite_warning
from millrace.speech.audio.stream import (
    LOSSLESS,
    MAX_RESETTABLE_GAP,
    RESETTABLE,
    STATES_DURATION,
    StreamRecording,
)

# Samples that encoders put before the sound, at most (AAC: Apple's).
_DELAYS = {"mp3": 1105, "mp2": 481, "aac": 2112, "aac_latm": 2112, "dts": 512, "ra_144": 160}
_WMA = ("wmav1", "wmav2")
# Of about a second: enough to hear whether two channels cancel each other.
_TRIAL_BLOCKS = 4


def stream_info(path: str | os.PathLike) -> AudioInfo:
    """Decode the beginning, measure the duration where what is stated can't be trusted."""
    with StreamRecording(path) as stream:
        trial = stream.blocks()
        for _ in itertools.islice(trial, _TRIAL_BLOCKS):
            pass
        trial.close()
    duration, wrong = _duration(stream.path)
    # Each begins with the word that ledgers count it under.
    warnings = []
    name = os.path.basename(stream.path)
    if stream.codec_name in _DELAYS and not stream.states_delay:
        most = 1000 * _DELAYS[stream.codec_name] / stream.sample_rate
        problem = f"{stream.codec_name} states none, so all of {name} is up to {most:.0f} ms later than in the original"
        warnings.append(f"no_encoder_delay: {problem}")
    if stream.codec_name in _WMA and not stream.by_ffmpeg:
        problem = f"{name} does not state its encoder: if FFmpeg was it, all of it is 23 to 64 ms earlier"
        warnings.append(f"no_encoder_delay: {problem} than in the original")
    if stream.opposite:
        warnings.append(opposite_warning(name))
    if stream.headerless:
        warnings.append(
            f"no_header: {name} has none, and is taken for {stream.headerless} because of its name"
        )
    if stream.form == "wav":
        warnings += loose_ends(stream.path)
    if wrong:
        warnings.append(f"duration_wrong: {name} states {wrong}; measured {duration:.3f} s")
    return AudioInfo(
        path=stream.path,
        container=stream.form,
        codec=stream.codec_name,
        sample_rate=stream.sample_rate,
        channels=stream.channels,
        duration_seconds=duration,
        lossless=stream.codec_name in LOSSLESS or stream.codec_name.startswith("pcm_"),
        warnings=tuple(warnings),
    )


def _duration(path: str) -> tuple[float, str]:
    """Seconds, and what the header states where that is wrong by more than 0.1 s (else "").

    What the header states is held against the packets of the last 10 s; where they disagree, or nothing
    reliable is stated, all packets are counted without decoding them.
    """
    with StreamRecording(path) as stream:
        stated = _stated_duration(stream)
        if stated is not None and _tail_agrees(stream, stated):
            return stated, ""
    with StreamRecording(path) as stream:
        measured = _count_packets(stream)
    wrong = f"a duration of {stated:.3f} s" if stated is not None and abs(stated - measured) > 0.1 else ""
    return measured, wrong


def _stated_duration(stream: StreamRecording) -> float | None:
    if stream.form not in STATES_DURATION:
        return None
    track, container = stream.stream, stream.container
    if stream.form == "ogg" and _is_chained(stream.path):
        return None
    if track.duration is not None and track.time_base is not None:
        seconds = float(track.duration * track.time_base)
    elif container.duration is not None:
        seconds = container.duration / 1e6
    else:
        return None
    if stream.form == "ogg" and stream.codec_name == "opus" and len(stream.codec.extradata or b"") >= 12:
        seconds -= struct.unpack("<H", stream.codec.extradata[10:12])[0] / 48000
    return seconds if seconds > 0 else None


def _tail_agrees(stream: StreamRecording, stated: float) -> bool:
    start = stream.stream.start_time
    begin = float(start * stream.stream.time_base) if start is not None else 0.0
    try:
        if stated > 20:
            stream.container.seek(int((begin + stated - 10) * 1e6))
        end = None
        for packet in stream.packets():
            if packet.pts is not None:
                behind = float((packet.pts + (packet.duration or 0)) * packet.time_base)
                if end is not None and behind < end - 1.0:
                    return False  # another recording is joined on
                end = max(end or 0.0, behind)
    except (av.error.FFmpegError, OSError):
        return False
    return not stream.errors and end is not None and abs(end - begin - stated) < 0.1


def _count_packets(stream: StreamRecording) -> float:
    """The timeline's length by the stamps and durations of all packets, undecoded."""
    total, due, last = 0.0, None, 0.0
    tick = float(stream.stream.time_base or 0)  # not the packet's: fractions take longer than reading does
    for packet in stream.packets():
        if packet.size == 0:
            continue
        total -= sum(discarded(packet)) / (stream.codec.sample_rate or 48000)
        length = packet.duration * tick if packet.duration else last
        if packet.pts is None:
            total += length
            due = None if due is None else due + length
            continue
        now = packet.pts * tick
        if due is None:
            total += length
        else:
            step = now - due
            resettable = stream.form in RESETTABLE and step > MAX_RESETTABLE_GAP
            total += length if step < -1.0 or resettable else step + length
        due, last = now + length, length
    return max(total, 0.0)


def _is_chained(path: str) -> bool:
    """Whether the last page of an Ogg file belongs to another stream than those that begin at its start."""
    with open(path, "rb") as handle:
        head = handle.read(65536)
        handle.seek(max(0, os.path.getsize(path) - 131072))
        tail = handle.read()
    at = tail.rfind(b"OggS")
    return at < 0 or b"OggS\0\x02" not in head or head.find(tail[at + 14 : at + 18]) < 0
