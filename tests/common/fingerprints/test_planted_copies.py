"""Of copies planted in real speech, nearly every segment is found, and nothing else is."""

from __future__ import annotations

import os
import shutil

import numpy as np
import pytest

from millrace.common.errors import MillraceError
from millrace.common.fingerprints import matches
from millrace.common.fingerprints.matches import Known, Match
from millrace.common.fingerprints.scale import SEARCHED_STEPS
from millrace.speech.demo.recordings import Recording
from tests.common.fingerprints import planted
from tests.common.fingerprints.planted import KINDS, RATE, Cut
from tests.workflow.workflow import ROOT

pytestmark = pytest.mark.long
LEAST_RECALL = 0.99
# Two sounds of half a second are the same where the samples of one, 20 ms earlier or later at most,
# have this correlation with those of the other.
SAME = 0.9
WINDOW, LAG = RATE // 2, RATE // 50


@pytest.fixture(scope="module")
def corpus() -> list[Recording]:
    missing = pytest.fail if os.environ.get("MILLRACE_CI") else pytest.skip
    if not (shutil.which("apt-get") and shutil.which("dpkg")):
        missing("no apt-get and dpkg on this machine")
    try:
        recordings = planted.corpus(ROOT / "resources/speech/debian")
    except MillraceError as error:
        missing(f"no prompts: {error}")
    assert len(recordings) >= 100
    return recordings


@pytest.fixture(scope="module")
def known(corpus) -> Known:
    return planted.known_of(corpus)


@pytest.fixture(scope="module")
def repeats(corpus, known) -> list[tuple[Cut, Match]]:
    """What recordings have in common with others, before anything is planted."""
    cuts = planted.cuts_of(corpus)
    samples = [recording.samples for recording in corpus]
    found = matches.find(planted.pieces(samples, cuts, SEARCHED_STEPS), known)
    of = known.pieces.recordings
    return [
        (cuts[match.piece], match)
        for match in found
        if of[match.of_piece] != cuts[match.piece].recording
    ]


def correlation(sound: np.ndarray, wider: np.ndarray) -> float:
    """The highest one of a sound with where it may lie in a wider one."""
    windows = np.lib.stride_tricks.sliding_window_view(wider, len(sound))
    products = windows @ sound
    norms = np.linalg.norm(windows, axis=1) * np.linalg.norm(sound)
    return float((products / np.maximum(norms, 1e-9)).max())


def same_seconds(corpus: list[Recording], cut: Cut, of_recording: int, offset: float) -> float:
    """For how long the samples of a segment are those of another recording."""
    sound, other = (corpus[n].samples.astype(np.float32) for n in (cut.recording, of_recording))
    windows = 0
    for start in range(round(cut.start * RATE), round(cut.end * RATE) - WINDOW, WINDOW):
        first = start + round(offset * RATE) - LAG
        wider = other[max(first, 0) : max(first, 0) + WINDOW + 2 * LAG]
        if first >= 0 and len(wider) > WINDOW:
            windows += correlation(sound[start : start + WINDOW], wider) >= SAME
    return windows * WINDOW / RATE


def test_prompts_of_one_voice_are_no_copies_unless_the_samples_are_the_same(corpus, known, repeats):
    """Some prompts are in the packages twice, under two texts: those are the same sound."""
    for cut, match in repeats:
        of_recording = int(known.pieces.recordings[match.of_piece])
        same = same_seconds(corpus, cut, of_recording, match.offset)
        assert same >= 0.7 * match.seconds, (cut, match)
    assert len(repeats) == 6  # docs/leaks.md


@pytest.mark.parametrize("kind", KINDS)
def test_nearly_every_segment_of_a_copy_is_found(kind, corpus, known, repeats):
    copies, cuts, found = planted.plant(corpus, known, KINDS[kind])
    known_repeats = {
        (cut.recording, int(known.pieces.recordings[match.of_piece])) for cut, match in repeats
    }
    of_original = set()
    for match in found:
        recording = cuts[match.piece].recording
        of_recording = int(known.pieces.recordings[match.of_piece])
        if of_recording != recording:
            assert (recording, of_recording) in known_repeats
            continue
        of_original.add(match.piece)
        assert match.offset == pytest.approx(copies[recording].offset, abs=0.15)
    assert len(of_original) >= LEAST_RECALL * len(cuts) > 0


def test_exactly_repeated_prompts_are_the_same_sound(corpus, known):
    """Segments in another order, with other pauses, are still found, each at its own offset."""
    gap = np.zeros(RATE // 3, np.int16)
    shuffled, cuts = [], []
    for number, recording in enumerate(corpus[:20]):
        parts, position = [], 0
        for segment in reversed(recording.segments):
            sound = recording.samples[segment.start : segment.end]
            if len(sound) >= planted.SHORTEST * RATE:
                cuts.append(Cut(number, position / RATE, (position + len(sound)) / RATE))
            parts += [sound, gap]
            position += len(sound) + len(gap)
        shuffled.append(np.concatenate(parts))
    found = matches.find(planted.pieces(shuffled, cuts, SEARCHED_STEPS), known)
    assert {match.piece for match in found} == set(range(len(cuts)))
