"""Recordings in, segments out: what a recording is, and its spans as int16 mono.

PCM goes through libsndfile, all else through FFmpeg's libraries inside PyAV (no program called
ffmpeg is needed). A file's content decides, never its name. FLAC too is decoded from its beginning
by FFmpeg: most of a recording is wanted, and libsndfile neither reads on behind damage nor without
a length.
"""

from __future__ import annotations

import bisect
import itertools
import math
import os
from collections import deque
from collections.abc import Iterator, Sequence

import numpy as np

from millrace.speech.audio.encode import encode
from millrace.speech.audio.pcm import open_pcm, pcm_info, read_pcm
from millrace.speech.audio.recording import AudioError, AudioInfo, resampled, to_int16

__all__ = ["OVERHANG_SECONDS", "AudioError", "AudioInfo", "cut", "encode", "probe"]

# Aligners round: a span may end this much behind the last sample, and is cut there.
OVERHANG_SECONDS = 0.05
# If a span is longer, the recording's duration is measured first: a mistyped end must not buffer it
# all.
_LONG_SPAN_SECONDS = 600.0

Segments = Iterator[np.ndarray | AudioError]
_Span = tuple[float, float] | AudioError  # in seconds, or why it is none


def probe(path: str | os.PathLike) -> AudioInfo:
    """What a recording is; AudioError if it gives no audio.

    Cheap: header, first and last packets. All packets are counted (not decoded) if the header
    states no duration, or one that the last packets contradict.
    """
    pcm = open_pcm(path)
    if pcm is not None:
        with pcm:
            return pcm_info(pcm)
    from millrace.speech.audio.facts import stream_info

    try:
        return stream_info(path)
    except (AudioError, MemoryError, OSError):
        raise
    except Exception as error:  # one file that trips a library must not end the work on all others
        raise AudioError(
            "audio_load", path, f"cannot be read ({type(error).__name__}: {error})"
        ) from error


def cut(
    path: str | os.PathLike, spans: Sequence[tuple[float, float]], sampling_rate: int
) -> Segments:
    """Yield each span's samples, int16 mono (n,) at `sampling_rate`, or an AudioError. Spans are in
    seconds.

    A span is the samples [round(start * rate), round(end * rate)) of the source at its own rate;
    they are mixed to mono (see `recording.mono`), resampled by soxr HQ if the rates differ, and
    rounded once. `spans` are sorted by start (ValueError else); those that are no span (NaN,
    negative, reversed, without a sample) may stand anywhere.

    The recording is read once. Memory is bounded by the longest span and what overlaps it, not by
    the recording. A yielded AudioError concerns that span only: `out_of_range`, or `audio_load` if
    the span touches a damaged stretch. One that concerns the whole recording is raised at the first
    `next`.
    """
    if sampling_rate <= 0:
        raise ValueError(f"sampling_rate must be above 0, not {sampling_rate}")
    checked = [_check(path, span) for span in spans]
    starts = [span[0] for span in checked if not isinstance(span, AudioError)]
    if any(later < earlier for earlier, later in itertools.pairwise(starts)):
        raise ValueError(f"{os.fspath(path)}: the spans are not sorted by start")
    pcm = open_pcm(path)
    if pcm is None:
        yield from _cut_stream(path, checked, sampling_rate)
        return
    with pcm:
        for span in checked:
            try:
                start, stop = _limits(path, span, pcm.samplerate, pcm.frames)
                yield resampled(read_pcm(pcm, start, stop), pcm.samplerate, sampling_rate)
            except AudioError as error:
                yield error


def _check(path: str | os.PathLike, span: tuple[float, float]) -> _Span:
    try:
        start, end = (float(value) for value in span)
    except (TypeError, ValueError):
        return AudioError("out_of_range", path, f"{span!r} is no span of seconds")
    if not (math.isfinite(start) and math.isfinite(end)):
        return AudioError("out_of_range", path, f"the span {start} to {end} s is not finite")
    if start < 0:
        problem = "begins before 0"
    elif end <= start:
        problem = "has no length" if end == start else "ends before it begins"
    else:
        return start, end
    return AudioError("out_of_range", path, f"the span {start:.3f} to {end:.3f} s {problem}")


def _outside(path: str | os.PathLike, span: tuple[float, float], seconds: float) -> AudioError:
    problem = f"lies outside of the recording, which is {seconds:.3f} s long"
    return AudioError("out_of_range", path, f"the span {span[0]:.3f} to {span[1]:.3f} s {problem}")


def _limits(path: str | os.PathLike, span: _Span, rate: int, total: int) -> tuple[int, int]:
    """Samples [start, stop) of a span in a recording of `total` samples; a small overhang is cut
    off."""
    if isinstance(span, AudioError):
        raise span
    start, stop = round(span[0] * rate), round(span[1] * rate)
    if stop > total + round(OVERHANG_SECONDS * rate) or start >= total:
        raise _outside(path, span, total / rate)
    if min(stop, total) <= start:
        problem = f"the span {span[0]:.6f} to {span[1]:.6f} s holds no sample at {rate} Hz"
        raise AudioError("out_of_range", path, problem)
    return start, min(stop, total)


def _cut_stream(path: str | os.PathLike, spans: list[_Span], sampling_rate: int) -> Segments:
    from millrace.speech.audio.stream import StreamRecording

    longest = max(
        (span[1] - span[0] for span in spans if not isinstance(span, AudioError)), default=0.0
    )
    duration = probe(path).duration_seconds if longest > _LONG_SPAN_SECONDS else math.inf
    window: deque[np.ndarray] = deque()  # the decoded blocks that spans still need, oldest first
    first = total = 0  # position of its first sample, and behind its last one
    with StreamRecording(path) as stream:
        blocks = stream.blocks()
        blocks = itertools.chain([next(blocks)], blocks)  # raises if nothing can be decoded
        rate, timeline = stream.sample_rate, stream.timeline
        for span in spans:
            if not isinstance(span, AudioError) and span[1] > 1.01 * duration + 5:
                span = _outside(path, span, duration)
            if isinstance(span, AudioError):
                yield span
                continue
            # Decode up to the span's end, and forget what lies before its start: spans are sorted
            # by start.
            start, stop = round(span[0] * rate), round(span[1] * rate)
            while total < stop and (block := next(blocks, None)) is not None:
                # If nothing is resampled, int16 is final and half the memory.
                window.append(to_int16(block) if rate == sampling_rate else block)
                total += len(block)
                while window and first + len(window[0]) <= start:
                    first += len(window.popleft())

            # What touches damage is refused (see `timeline`).
            lost_from, holes = timeline.lost_from, timeline.holes
            seconds = f"{span[0]:.3f} to {span[1]:.3f} s"
            try:
                if lost_from is not None and stop > lost_from:
                    problem = f"is damaged at {lost_from / rate:.3f} s and has no reliable time stamps there"
                    problem += f": what follows can't be placed: {seconds}"
                    raise AudioError("audio_load", path, problem)
                start, stop = _limits(path, span, rate, total)
                index = bisect.bisect_right(holes, start, key=lambda hole: hole[1])
                if (
                    index < len(holes) and holes[index][0] < stop
                ):  # the first that ends behind `start`
                    begin, end = (sample / rate for sample in holes[index])
                    problem = (
                        f"is damaged from {begin:.3f} to {end:.3f} s, within the span {seconds}"
                    )
                    raise AudioError("audio_load", path, problem)
                yield resampled(
                    np.concatenate(window)[start - first : stop - first], rate, sampling_rate
                )
            except AudioError as error:
                yield error
