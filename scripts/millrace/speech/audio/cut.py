"""Recordings in, segments out: what a recording is, its spans as int16 mono, and segments as bytes of a file
format.

PCM goes through libsndfile, everything else, FLAC too, through FFmpeg's libraries inside PyAV (no program
called ffmpeg is needed). Which one is decided by a file's content, never by its name. FLAC is streamed rather
than sought: most segments of a recording are wanted, and FFmpeg, unlike libsndfile, reads on behind damage
and without a length.
"""

from __future__ import annotations

import bisect
import contextlib
import itertools
import math
import os
from collections import deque
from collections.abc import Iterator, Sequence

import numpy as np

from millrace.speech.audio.encode import AUDIO_FORMATS, encode
from millrace.speech.audio.pcm import PcmRecording
from millrace.speech.audio.recording import (
    AudioError,
    AudioInfo,
    head_of,
    is_pcm_container,
    resampled,
    to_int16,
)

__all__ = ["AUDIO_FORMATS", "OVERHANG_SECONDS", "AudioError", "AudioInfo", "cut", "encode", "probe"]

# Aligners round: a span may end this much behind the last sample, and is cut there.
OVERHANG_SECONDS = 0.05
# Above this length of span, the recording's duration is measured first, so that a mistyped end does not
# buffer it all.
_LONG_SPAN_SECONDS = 600.0


def probe(path: str | os.PathLike) -> AudioInfo:
    """What a recording is; AudioError where it gives no audio.

    Cheap: header, first and last packets. All packets are counted (not decoded) where the header states no
    duration, or one that the last packets contradict.
    """
    pcm = _open_pcm(path)
    if pcm is not None:
        with contextlib.closing(pcm):
            return pcm.info()
    from millrace.speech.audio.facts import stream_info

    try:
        return stream_info(path)
    except (AudioError, MemoryError, OSError):
        raise
    except Exception as error:  # one file that trips a library must not end the work on all others
        raise AudioError("audio_load", path, f"cannot be read ({type(error).__name__}: {error})") from error


def cut(
    path: str | os.PathLike, spans: Sequence[tuple[float, float]], sampling_rate: int
) -> Iterator[np.ndarray | AudioError]:
    """Yield for each span (start, end) in seconds its samples, int16 mono (n,) at `sampling_rate`, or an
    AudioError.

    A span is the samples [round(start * rate), round(end * rate)) of the source at its own rate; they are
    mixed to mono (see `recording.mono`), resampled by soxr HQ where the rates differ, and rounded once.
    `spans` are sorted by start (ValueError else); those that are no span (NaN, negative, reversed, without a
    sample) may stand anywhere.

    The recording is read once. Memory is bounded by the longest span and what overlaps it, not by the
    recording. A yielded AudioError concerns that span only: `out_of_range`, or `audio_load` where the span
    touches a damaged stretch. One that concerns the whole recording is raised at the first `next`.
    """
    if sampling_rate <= 0:
        raise ValueError(f"sampling_rate must be above 0, not {sampling_rate}")
    checked = [_check(path, span) for span in spans]
    starts = [span[0] for span in checked if not isinstance(span, AudioError)]
    if any(later < earlier for earlier, later in itertools.pairwise(starts)):
        raise ValueError(f"{os.fspath(path)}: the spans are not sorted by start")
    pcm = _open_pcm(path)
    if pcm is None:
        yield from _cut_stream(path, checked, sampling_rate)
        return
    with contextlib.closing(pcm):
        for span in checked:
            yield _cut_pcm(pcm, span, sampling_rate)


def _open_pcm(path: str | os.PathLike) -> PcmRecording | None:
    return PcmRecording.open(path) if is_pcm_container(head_of(path)) else None


def _check(path: str | os.PathLike, span: tuple[float, float]) -> tuple[float, float] | AudioError:
    try:
        start, end = (float(value) for value in span)
    except (TypeError, ValueError):
        return AudioError("out_of_range", path, f"{span!r} is no span of seconds")
    if not (math.isfinite(start) and math.isfinite(end)):
        return AudioError("out_of_range", path, f"the span {start} to {end} s is not finite")
    if start < 0 or end <= start:
        kind = (
            "begins before 0" if start < 0 else "has no length" if end == start else "ends before it begins"
        )
        return AudioError("out_of_range", path, f"the span {start:.3f} to {end:.3f} s {kind}")
    return start, end


def _limits(
    path: str | os.PathLike, span: tuple[float, float], rate: int, total: int
) -> tuple[int, int] | AudioError:
    """Samples [start, stop) of a span in a recording of `total` samples, its end clipped if it overhangs a
    little."""
    start, stop = round(span[0] * rate), round(span[1] * rate)
    if stop > total + round(OVERHANG_SECONDS * rate) or start >= total:
        where = f"lies outside of the recording, which is {total / rate:.3f} s long"
        return AudioError("out_of_range", path, f"the span {span[0]:.3f} to {span[1]:.3f} s {where}")
    if min(stop, total) <= start:
        return AudioError(
            "out_of_range", path, f"the span {span[0]:.6f} to {span[1]:.6f} s holds no sample at {rate} Hz"
        )
    return start, min(stop, total)


def _cut_pcm(
    pcm: PcmRecording, span: tuple[float, float] | AudioError, sampling_rate: int
) -> np.ndarray | AudioError:
    limits = span if isinstance(span, AudioError) else _limits(pcm.path, span, pcm.sample_rate, pcm.frames)
    if isinstance(limits, AudioError):
        return limits
    try:
        return resampled(pcm.read(*limits), pcm.sample_rate, sampling_rate)
    except AudioError as error:
        return error


class Window:
    """The stretch of a decoded recording that spans still need: blocks of mono samples, oldest first."""

    def __init__(self) -> None:
        self.blocks: deque[np.ndarray] = deque()
        self.first = 0  # place of the oldest sample held
        self.total = 0  # samples seen so far
        self.peak = 0  # most samples ever held

    def push(self, block: np.ndarray) -> None:
        self.blocks.append(block)
        self.total += len(block)
        self.peak = max(self.peak, self.total - self.first)

    def forget(self, before: int) -> None:
        """Let go of blocks that end before sample `before`."""
        while self.blocks and self.first + len(self.blocks[0]) <= before:
            self.first += len(self.blocks.popleft())

    def take(self, start: int, stop: int) -> np.ndarray:
        parts, at = [], self.first
        for block in self.blocks:
            if at >= stop:
                break
            if at + len(block) > start:
                parts.append(block[max(0, start - at) : stop - at])
            at += len(block)
        return np.concatenate(parts)


def _cut_stream(
    path: str | os.PathLike,
    spans: list[tuple[float, float] | AudioError],
    sampling_rate: int,
    window: Window | None = None,
) -> Iterator[np.ndarray | AudioError]:
    from millrace.speech.audio.stream import StreamRecording

    spans = _without_overlong(path, spans)
    window = window or Window()
    with StreamRecording(path) as stream:
        blocks = stream.blocks()
        block = next(blocks)  # raises for the recording as a whole
        rate = stream.sample_rate
        ended = False
        for span in spans:
            if isinstance(span, AudioError):
                yield span
                continue
            start, stop = round(span[0] * rate), round(span[1] * rate)
            window.forget(start)
            while window.total < stop and not ended:
                if block is None:
                    block = next(blocks, None)
                    ended = block is None
                    continue
                # Where nothing is resampled, int16 is final and half the memory.
                window.push(to_int16(block) if rate == sampling_rate else block)
                block = None
                window.forget(start)
            if stream.lost_from is not None and stop > stream.lost_from:
                problem = f"is damaged at {stream.lost_from / rate:.3f} s and has no reliable time stamps there: what follows"
                yield AudioError(
                    "audio_load", path, f"{problem} can't be placed: {span[0]:.3f} to {span[1]:.3f} s"
                )
                continue
            # Before the end is reached, all that counts is that the span does not pass what is decoded.
            limits = _limits(path, span, rate, window.total)
            if isinstance(limits, AudioError):
                yield limits
                continue
            hole = _hole(stream.holes, *limits)
            if hole:
                problem = f"is damaged from {hole[0] / rate:.3f} to {hole[1] / rate:.3f} s, within the span"
                yield AudioError("audio_load", path, f"{problem} {span[0]:.3f} to {span[1]:.3f} s")
            else:
                yield resampled(window.take(*limits), rate, sampling_rate)


def _hole(holes: list[tuple[int, int]], start: int, stop: int) -> tuple[int, int] | None:
    at = bisect.bisect_right(holes, (start, math.inf)) - 1
    for hole in holes[max(at, 0) : at + 2]:
        if hole[0] < stop and hole[1] > start:
            return hole
    return None


def _without_overlong(
    path: str | os.PathLike, spans: list[tuple[float, float] | AudioError]
) -> list[tuple[float, float] | AudioError]:
    """Refuse long spans that pass the recording's end by far before they are buffered."""
    if not any(not isinstance(span, AudioError) and span[1] - span[0] > _LONG_SPAN_SECONDS for span in spans):
        return spans
    duration = probe(path).duration_seconds
    limit = 1.01 * duration + 5
    problem = f"lies outside of the recording, which is {duration:.3f} s long"
    return [
        AudioError("out_of_range", path, f"the span {span[0]:.3f} to {span[1]:.3f} s {problem}")
        if not isinstance(span, AudioError) and span[1] > limit
        else span
        for span in spans
    ]
