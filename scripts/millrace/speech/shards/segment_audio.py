"""Segments as encoded bytes: each recording is read once, and the order stays."""

from __future__ import annotations

import contextlib
import errno
import itertools
from collections.abc import Generator, Iterable
from typing import NamedTuple

import numpy as np

from millrace.common.errors import NO_ROOM
from millrace.common.fingerprints.words import words
from millrace.speech.audio import cut as audio
from millrace.speech.columns import AUDIO_LOAD, PROCESSING
from millrace.speech.manifest.rejects import status_of
from millrace.speech.shards.index import word_steps
from millrace.speech.shards.plan import PlannedSegment, ShardOptions

_FATAL = (*NO_ROOM, errno.ENOMEM, errno.EMFILE, errno.ENFILE)


class Encoded(NamedTuple):
    """A segment's file and its length in samples, or the status and message that say why there is
    none."""

    body: bytes | None
    samples: int
    status: str
    message: str
    words: bytes | None = None  # the fingerprint of its sound


def encoded(segments: Iterable[PlannedSegment], options: ShardOptions) -> Generator[Encoded]:
    """Yield an `Encoded` for each segment, in order. Close the generator when not all are taken.

    Errors of one segment or recording are in its `Encoded`; a full disk or exhausted memory is
    raised.
    """
    for _, group in itertools.groupby(segments, key=lambda segment: segment.row["video_id"]):
        of_recording = list(group)
        spans: dict[str, list[tuple[float, float]]] = {}
        for segment in of_recording:
            spans.setdefault(segment.source, []).append(segment.span)
        # Transcripts of one recording may name different files: each is read once, side by side.
        with contextlib.ExitStack() as stack:
            readers = {path: _read(path, spans[path], options.sampling_rate) for path in spans}
            for reader in readers.values():
                stack.enter_context(contextlib.closing(reader))
            for segment in of_recording:
                yield _encode(segment, next(readers[segment.source]), options)


def _read(
    path: str, spans: list[tuple[float, float]], rate: int
) -> Generator[np.ndarray | Exception]:
    """`audio.cut`, but with one answer for each span whatever happens."""
    cuts = audio.cut(path, spans, rate)
    answered = 0
    broken: Exception
    with contextlib.closing(cuts):
        try:
            for samples in cuts:
                answered += 1
                yield samples
            broken = audio.AudioError("audio_load", path, "ends before its segments do")
        except Exception as error:
            if _is_fatal(error):
                raise
            broken = error
    yield from itertools.repeat(broken, len(spans) - answered)


def _encode(segment: PlannedSegment, cut: np.ndarray | Exception, options: ShardOptions) -> Encoded:
    if isinstance(cut, audio.AudioError):
        return Encoded(None, 0, status_of(cut.reason), str(cut))
    if isinstance(cut, Exception):
        return Encoded(None, 0, AUDIO_LOAD, f"{segment.source}: {type(cut).__name__}: {cut}")
    span = f"from {segment.span[0]:g} to {segment.span[1]:g} s"
    if not len(cut):
        return Encoded(None, 0, PROCESSING, f"{segment.source}: no sound {span}")
    try:
        body = audio.encode(cut, options.sampling_rate, options.audio_format)
    except Exception as error:
        if _is_fatal(error):
            raise
        problem = f"cannot be encoded as {options.audio_format} {span} ({error})"
        return Encoded(None, 0, PROCESSING, f"{segment.source}: {problem}")
    heard = words(cut, options.sampling_rate, word_steps(segment.row["split"]))
    return Encoded(body, len(cut), "", "", heard.tobytes())


def _is_fatal(error: Exception) -> bool:
    """Trouble of this machine, not of a recording."""
    return isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno in _FATAL)
