"""A sample read and decoded to what is compared of it: its bytes, the fingerprint of its sound, its
picture; which formats these are, and how much is decoded."""

from __future__ import annotations

import functools
import hashlib
import io
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from multiprocessing import get_context
from typing import NamedTuple

import numpy as np

from millrace.audit.splits.samples import Sample
from millrace.common.errors import MillraceError
from millrace.common.fingerprints import pictures
from millrace.common.fingerprints.scale import SEARCHED_STEPS
from millrace.common.fingerprints.words import words
from millrace.common.loading.bad_samples import SampleError
from millrace.common.loading.decode import decode_mono

# How much sound of one file is decoded: 11 GB as stereo of 48 kHz.
MOST_SECONDS = 8 * 3600
_SAMPLES_AT_ONCE = 16  # for a process
_PICTURES = (b"\xff\xd8\xff", b"\x89PNG", b"BM", b"II*\0", b"MM\0*", b"P5", b"P6")
_FORMATS = ("JPEG", "PNG", "PPM", "BMP", "TIFF", "WEBP")


class Content(NamedTuple):
    """A sample, read and decoded; its `place` is dropped.

    `sha256` of its bytes, "" for a segment of a file; `words`: the fingerprint of its sound, at the
    steps that were asked for; `look` and `small`: the perceptual hash of its picture, and what of
    it is compared; `seconds` of sound (None if nobody knows); `problem`: why it could not be read
    or decoded, a slug, and `detail` for people.
    """

    sample: Sample
    sha256: str = ""
    words: np.ndarray = np.zeros(0, np.uint32)
    look: str = ""
    small: np.ndarray = np.zeros(0, np.int16)
    seconds: float | None = None
    problem: str = ""
    detail: str = ""

    def searched(self) -> Content:
        """The sample as one to look for: of all its words, those SEARCHED_STEPS apart."""
        return self._replace(words=self.words[::SEARCHED_STEPS])


def contents(samples: Iterable[Sample], steps: int, workers: int) -> Iterator[Content]:
    """Read and decode samples in so many processes, in order; words stand `steps` steps apart."""
    if workers == 1:
        yield from (read(sample, steps) for sample in samples)
        return
    unread = iter(samples)
    waiting: deque[Future[list[Content]]] = deque()
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        try:
            while batch := list(islice(unread, _SAMPLES_AT_ONCE)):
                waiting.append(pool.submit(_read_all, batch, steps))
                if len(waiting) > 2 * workers:
                    yield from waiting.popleft().result()
            while waiting:
                yield from waiting.popleft().result()
        except BrokenProcessPool:
            remedy = "Probably memory ran out: take fewer --workers"
            raise MillraceError("a process that decodes was killed", remedy=remedy) from None


def _read_all(samples: list[Sample], steps: int) -> list[Content]:
    return [read(sample, steps) for sample in samples]


def read(sample: Sample, steps: int) -> Content:
    """Read and decode a sample; what cannot be is told in `problem`."""
    known = Content(sample._replace(place=None), seconds=sample.seconds)
    if sample.place is None:
        return known
    try:
        if sample.start is not None:
            return _segment(known, sample.place.path, sample.start, steps)
        raw = sample.place.read()
        known = known._replace(sha256=hashlib.sha256(raw).hexdigest())
        if raw.startswith(_PICTURES) or raw[8:12] == b"WEBP":
            return _with_picture(known, raw)
        samples, rate = decode_mono(raw, MOST_SECONDS)
        return _with_words(known, samples, rate, steps)
    except OSError as error:
        detail = error.strerror or type(error).__name__
        return known._replace(problem="cannot_be_opened", detail=detail)
    except SampleError as error:
        return known._replace(problem=error.reason, detail=str(error))


def _segment(known: Content, path: str, start: float, steps: int) -> Content:
    """The sound of a segment of a file, which is decoded once for its neighbours too. Raises
    SampleError for one that the file does not have."""
    samples, rate = _of_file(path)
    whole = len(samples) / rate
    end = whole if known.seconds is None else min(whole, start + known.seconds)
    if not 0 <= start < end:  # NaN is nowhere
        problem = f"a segment from {start:g} to {end:g} s of a file of {whole:g} s"
        raise SampleError("outside_of_file", problem)
    return _with_words(known, samples[round(start * rate) : round(end * rate)], rate, steps)


@functools.lru_cache(maxsize=1)
def _of_file(path: str) -> tuple[np.ndarray, int]:
    """The mean of the channels, and the sampling rate. Raises DecodeError."""
    with open(path, "rb") as file:
        return decode_mono(file.read(), MOST_SECONDS)


def _with_words(known: Content, samples: np.ndarray, rate: int, steps: int) -> Content:
    return known._replace(words=words(samples, rate, steps), seconds=len(samples) / rate)


def _with_picture(known: Content, raw: bytes) -> Content:
    """Add what is compared of a picture. Raises SampleError."""
    from PIL import Image  # sound does without

    try:
        with Image.open(io.BytesIO(raw), formats=_FORMATS) as image:
            picture = image.convert("RGB")
    # PIL's decoders raise whatever a damaged file makes them run into.
    except Exception as error:
        # Without the address of what Pillow was given, which differs from run to run.
        problem = str(error).partition(" <")[0] or type(error).__name__
        raise SampleError("damaged_picture", problem) from None
    return known._replace(look=pictures.look(picture), small=pictures.small(picture))
