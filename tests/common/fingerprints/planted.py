"""A corpus of real speech, and copies of its recordings of each kind, whose truth is known."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import soxr

from millrace.common import debian
from millrace.common.fingerprints import matches
from millrace.common.fingerprints.matches import Known, Match, Pieces
from millrace.common.fingerprints.scale import SEARCHED_STEPS
from millrace.common.fingerprints.words import words
from millrace.common.loading.decode import decode
from millrace.speech.audio.encode import encode_av
from millrace.speech.demo.prompts import LANGUAGES, distinct, packages, recorded
from millrace.speech.demo.recordings import Recording, Segment, assemble

RATE = 16_000
SEGMENTS_A_RECORDING = 4  # about 30 s
RECORDINGS_A_LANGUAGE = 21
SHORTEST = 3.0  # seconds of a segment that must be found
EDGE = 0.2  # seconds by which the segments of a copy begin or end elsewhere, at most
CUT = 0.4  # of the bytes, that a cut copy lacks
MP3_FRAME = b"\xff\xf3"  # how a frame of 16 kHz begins


class Copy(NamedTuple):
    """A copy of a recording: what is at t seconds in it is at t + `offset` in the original."""

    samples: np.ndarray
    offset: float = 0.0


def coded(samples: np.ndarray, muxer: str, codec: str, bit_rate: int) -> Copy:
    return Copy(decode(encode_av(samples, RATE, muxer, codec, bit_rate)))


def mp3(samples: np.ndarray) -> bytes:
    """Of 64 kbit/s; the default level takes three times as long."""
    return encode_av(samples, RATE, "mp3", "libmp3lame", 64_000, compression_level="7")


def byte_cut(samples: np.ndarray, first: float, last: float) -> Copy:
    """A part of the bytes of an MP3."""
    body = mp3(samples)
    start = body.index(MP3_FRAME, round(first * len(body)))
    return Copy(decode(body[start : round(last * len(body))]), start * 8 / 64_000)


def resampled(samples: np.ndarray, rate: int, other: int) -> np.ndarray:
    return soxr.resample(samples.astype(np.float32), rate, other)


def through(samples: np.ndarray, rate: int) -> Copy:
    """The samples after they had another rate."""
    return Copy(resampled(resampled(samples, RATE, rate), rate, RATE))


def mono(samples: np.ndarray) -> Copy:
    """Of two microphones, the second of which is farther away, and noisier."""
    noise = np.random.default_rng(1).normal(0, 30, len(samples))
    return Copy((samples + 0.6 * np.roll(samples, 7) + noise) / 2)


Make = Callable[[np.ndarray], Copy]
# What must be found.
KINDS: dict[str, Make] = {
    "renamed": Copy,
    "bytes of the beginning": lambda x: byte_cut(x, 0.0, 1 - CUT),
    "bytes of the end": lambda x: byte_cut(x, CUT, 1.0),
    "bytes of the middle": lambda x: byte_cut(x, CUT / 2, 1 - CUT / 2),
    "40 ms later": lambda x: Copy(np.concatenate([np.zeros(640, np.int16), x]), -0.04),
    "1.234 s earlier": lambda x: Copy(x[round(1.234 * RATE) :], 1.234),
    "Opus of 24 kbit/s": lambda x: coded(x, "ogg", "libopus", 24_000),
    "MP3 of 64 kbit/s": lambda x: Copy(decode(mp3(x))),
    "8 kHz": lambda x: through(x, 8_000),
    "-6 dB": lambda x: Copy(x // 2),
    "mono of stereo": mono,
    "through 44.1 kHz, speed unchanged": lambda x: through(x, 44_100),
}


class Cut(NamedTuple):
    """A segment of a recording, in seconds."""

    recording: int
    start: float
    end: float


def corpus(archives: Path) -> list[Recording]:
    """At least 100 recordings of prompts, each of which is in one of them only; from Debian
    packages, kept in `archives`. Raises MillraceError."""
    names = [name for language in LANGUAGES for name in packages(language)]
    folders = debian.fetch(names, archives)
    recordings = []
    for language, country in LANGUAGES.items():
        texts, audio = (folders[name] for name in packages(language))
        prompts = distinct(recorded(texts, audio))
        of_country = [part for long in assemble(prompts, 1, country) for part in _parts(long)]
        recordings += of_country[:RECORDINGS_A_LANGUAGE]
    return recordings


def _parts(long: Recording) -> Iterator[Recording]:
    """The recording in parts of some segments each."""
    for first in range(0, len(long.segments), SEGMENTS_A_RECORDING):
        chosen = long.segments[first : first + SEGMENTS_A_RECORDING]
        start, end = chosen[0].start - RATE // 4, chosen[-1].end + RATE // 4
        segments = [Segment(part.start - start, part.end - start, part.text) for part in chosen]
        yield Recording(long.samples[start:end], tuple(segments))


def pieces(
    recordings: Sequence[np.ndarray] | Mapping[int, np.ndarray], cuts: Sequence[Cut], steps: int
) -> Pieces:
    """The fingerprints of segments."""
    found = [
        words(recordings[number][round(start * RATE) : round(end * RATE)], RATE, steps)
        for number, start, end in cuts
    ]
    return Pieces(
        np.concatenate(found),
        np.array([len(each) for each in found]),
        np.array([cut.recording for cut in cuts]),
        np.array([cut.start for cut in cuts]),
    )


def cuts_of(recordings: Sequence[Recording]) -> list[Cut]:
    return [
        Cut(number, segment.start / RATE, segment.end / RATE)
        for number, recording in enumerate(recordings)
        for segment in recording.segments
    ]


def known_of(recordings: Sequence[Recording]) -> Known:
    samples = [recording.samples for recording in recordings]
    return Known(pieces(samples, cuts_of(recordings), 1))


class Planted(NamedTuple):
    """Copies of a kind: their segments, and the matches with segments of the originals."""

    copies: list[Copy]
    cuts: list[Cut]
    found: list[Match]


def plant(recordings: Sequence[Recording], known: Known, make: Make) -> Planted:
    """Search copies of all recordings, which are cut as another alignment would cut them."""
    copies = [make(recording.samples) for recording in recordings]
    rng = np.random.default_rng(0)
    cuts = []
    for cut in cuts_of(recordings):
        samples, offset = copies[cut.recording]
        start, end = np.array([cut.start, cut.end]) - offset + rng.uniform(-EDGE, EDGE, 2)
        start, end = max(start, 0.0), min(end, len(samples) / RATE)
        if end - start >= SHORTEST:
            cuts.append(Cut(cut.recording, start, end))
    searched = pieces([copy.samples for copy in copies], cuts, SEARCHED_STEPS)
    return Planted(copies, cuts, matches.find(searched, known))
