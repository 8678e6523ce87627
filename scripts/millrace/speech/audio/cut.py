"""Recordings in, segments out: which reader takes a file, which samples a span is, and when it lies
outside of the recording or in damage.

PCM goes through libsndfile, all else through FFmpeg's libraries inside PyAV (no program called
ffmpeg is needed). A file's content decides, never its name. FLAC too is decoded from its beginning
by FFmpeg: most of a recording is wanted, and libsndfile neither reads on behind damage nor without
a length.
"""

from __future__ import annotations

import bisect
import itertools
import os
from collections import deque
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from millrace.speech.audio.encode import encode
from millrace.speech.audio.pcm import open_pcm, pcm_info, read_pcm
from millrace.speech.audio.recording import (
    OVERHANG_SECONDS,
    AudioError,
    AudioInfo,
    resampled,
    to_int16,
)

if TYPE_CHECKING:  # FFmpeg's libraries are loaded where they are needed
    from millrace.speech.audio.stream import StreamRecording
    from millrace.speech.audio.timeline import Timeline

__all__ = ["AudioError", "AudioInfo", "cut", "encode", "probe"]

Segments = Generator[np.ndarray | AudioError, None, None]
_Span = tuple[float, float]  # in seconds


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


def cut(path: str | os.PathLike, spans: Sequence[_Span], sampling_rate: int) -> Segments:
    """Yield each span's samples, int16 mono (n,) at `sampling_rate`, or an AudioError. Spans are in
    seconds.

    A span is the samples [round(start * rate), round(end * rate)) of the source at its own rate;
    they are mixed to mono (see `recording.mono`), resampled by soxr HQ if the rates differ, and
    rounded once. `spans` are sorted by start (ValueError else), and are such as
    `manifest.rejects` lets pass.

    The recording is read once. Memory is bounded by the longest span and what overlaps it, not by
    the recording. A yielded AudioError concerns that span only: `out_of_range`, or `audio_load` if
    the span touches a damaged stretch. One that concerns the whole recording is raised at the first
    `next`.
    """
    if any(later < earlier for (earlier, _), (later, _) in itertools.pairwise(spans)):
        raise ValueError(f"{os.fspath(path)}: the spans are not sorted by start")
    pcm = open_pcm(path)
    if pcm is None:
        yield from _cut_stream(path, spans, sampling_rate)
        return
    with pcm:
        for span in spans:
            try:
                start, stop = _limits(path, span, pcm.samplerate, pcm.frames)
                yield resampled(read_pcm(pcm, start, stop), pcm.samplerate, sampling_rate)
            except AudioError as error:
                yield error


def _limits(path: str | os.PathLike, span: _Span, rate: int, total: int) -> tuple[int, int]:
    """Samples [start, stop) of a span in a recording of `total` samples; a small overhang is cut
    off."""
    start = round(span[0] * rate)
    stop = round(span[1] * rate)
    if stop > total + round(OVERHANG_SECONDS * rate) or start >= total:
        problem = f"lies outside of the recording, which is {total / rate:.3f} s long"
        span_text = f"the span {span[0]:.3f} to {span[1]:.3f} s"
        raise AudioError("out_of_range", path, f"{span_text} {problem}")
    stop = min(stop, total)
    if stop <= start:
        problem = f"the span {span[0]:.6f} to {span[1]:.6f} s holds no sample at {rate} Hz"
        raise AudioError("out_of_range", path, problem)
    return start, stop


def _cut_stream(path: str | os.PathLike, spans: Sequence[_Span], sampling_rate: int) -> Segments:
    from millrace.speech.audio.stream import StreamRecording

    with StreamRecording(path) as stream:
        window = _Window(stream, sampling_rate)  # raises if nothing can be decoded
        rate = stream.sample_rate
        for span in spans:
            window.read(round(span[0] * rate), round(span[1] * rate))
            try:
                _check_damage(path, span, rate, stream.timeline)
                start, stop = _limits(path, span, rate, window.end)
                _check_holes(path, span, rate, stream.timeline, (start, stop))
                yield resampled(window.samples(start, stop), rate, sampling_rate)
            except AudioError as error:
                yield error


class _Window:
    """The decoded samples that spans still need; spans are sorted by start."""

    def __init__(self, stream: StreamRecording, sampling_rate: int) -> None:
        blocks = stream.blocks()
        first = next(blocks)
        self._blocks = itertools.chain([first], blocks)
        # If nothing is resampled, int16 is final and half the memory.
        self._is_final = stream.sample_rate == sampling_rate
        self._kept: deque[np.ndarray] = deque()  # oldest first
        self._start = 0  # position of the first sample that is kept
        self.end = 0  # position behind the last one

    def read(self, start: int, stop: int) -> None:
        """Decode up to `stop`, if the recording is so long, and forget what lies before `start`."""
        while self.end < stop:
            block = next(self._blocks, None)
            if block is None:
                return
            self._kept.append(to_int16(block) if self._is_final else block)
            self.end += len(block)
            while self._kept and self._start + len(self._kept[0]) <= start:
                self._start += len(self._kept.popleft())

    def samples(self, start: int, stop: int) -> np.ndarray:
        return np.concatenate(self._kept)[start - self._start : stop - self._start]


def _check_damage(path: str | os.PathLike, span: _Span, rate: int, timeline: Timeline) -> None:
    """Raise AudioError for a span behind the place from which on nothing is placed."""
    if timeline.lost_from is None or round(span[1] * rate) <= timeline.lost_from:
        return
    problem = (
        f"is damaged at {timeline.lost_from / rate:.3f} s and has no reliable time stamps there"
    )
    seconds = f"{span[0]:.3f} to {span[1]:.3f} s"
    raise AudioError("audio_load", path, f"{problem}: what follows can't be placed: {seconds}")


def _check_holes(
    path: str | os.PathLike,
    span: _Span,
    rate: int,
    timeline: Timeline,
    samples: tuple[int, int],
) -> None:
    """Raise AudioError for a span whose `samples` [start, stop) touch a hole."""
    start, stop = samples
    # The first hole that ends behind `start`.
    index = bisect.bisect_right(timeline.holes, start, key=lambda hole: hole[1])
    if index == len(timeline.holes) or timeline.holes[index][0] >= stop:
        return
    begin, end = (sample / rate for sample in timeline.holes[index])
    seconds = f"{span[0]:.3f} to {span[1]:.3f} s"
    problem = f"is damaged from {begin:.3f} to {end:.3f} s, within the span {seconds}"
    raise AudioError("audio_load", path, problem)
