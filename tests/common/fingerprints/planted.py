"""Copies of recordings of each kind, and a corpus of real speech in which they are planted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
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


def coded(samples: np.ndarray, muxer: str, codec: str, bit_rate: int) -> np.ndarray:
    return decode(encode_av(samples, RATE, muxer, codec, bit_rate))


def through(samples: np.ndarray, rate: int) -> np.ndarray:
    """The samples after they had another rate."""
    return soxr.resample(soxr.resample(samples.astype(np.float32), RATE, rate), rate, RATE)


def mono(samples: np.ndarray) -> np.ndarray:
    """Of two microphones, the second of which is farther away, and noisier."""
    noise = np.random.default_rng(1).normal(0, 30, len(samples))
    return (samples + 0.6 * np.roll(samples, 7) + noise) / 2


Make = Callable[[np.ndarray], np.ndarray]
# What a copy is, and by how many seconds its sound comes later in the original.
KINDS: dict[str, tuple[Make, float]] = {
    "renamed": (lambda x: x, 0.0),
    "beginning": (lambda x: x[: 12 * RATE], 0.0),
    "end": (lambda x: x[round(13.3 * RATE) :], 13.3),
    "middle": (lambda x: x[5 * RATE : 16 * RATE], 5.0),
    "40 ms later": (lambda x: np.concatenate([np.zeros(640, np.int16), x]), -0.04),
    "1.234 s earlier": (lambda x: x[round(1.234 * RATE) :], 1.234),
    "between two steps": (lambda x: x[64:], 0.004),
    "Opus of 24 kbit/s": (lambda x: coded(x, "ogg", "libopus", 24_000), 0.0),
    "MP3 of 64 kbit/s": (lambda x: coded(x, "mp3", "libmp3lame", 64_000), 0.0),
    "8 kHz": (lambda x: through(x, 8_000), 0.0),
    "-6 dB": (lambda x: x // 2, 0.0),
    "mono of stereo": (mono, 0.0),
    "through 44.1 kHz": (lambda x: through(x, 44_100), 0.0),
}


class Cut(NamedTuple):
    """A segment of a recording, in seconds."""

    recording: int
    start: float
    end: float


def pieces(
    recordings: Sequence[np.ndarray] | dict[int, np.ndarray], cuts: Sequence[Cut], steps: int
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


def cuts_of(recordings: Sequence[Recording]) -> list[Cut]:
    return [
        Cut(number, segment.start / RATE, segment.end / RATE)
        for number, recording in enumerate(recordings)
        for segment in recording.segments
    ]


def known_of(recordings: Sequence[Recording]) -> Known:
    samples = [recording.samples for recording in recordings]
    return Known(pieces(samples, cuts_of(recordings), 1))


def plant(
    recordings: Sequence[Recording], known: Known, kind: str
) -> tuple[list[Cut], list[Match]]:
    """Search copies of all recordings, which are cut as another alignment would cut them: their
    segments, and the matches with segments of the originals."""
    make, offset = KINDS[kind]
    copies = [make(recording.samples) for recording in recordings]
    rng = np.random.default_rng(0)
    cuts = []
    for cut in cuts_of(recordings):
        start, end = np.array([cut.start, cut.end]) - offset + rng.uniform(-EDGE, EDGE, 2)
        start, end = max(start, 0.0), min(end, len(copies[cut.recording]) / RATE)
        if end - start >= SHORTEST:
            cuts.append(Cut(cut.recording, start, end))
    return cuts, matches.find(pieces(copies, cuts, SEARCHED_STEPS), known)
