"""Copies of sound: each way in which one comes about is found, and what is merely alike is not."""

from __future__ import annotations

import numpy as np
import pytest

from millrace.common.fingerprints import matches
from millrace.common.fingerprints.matches import Known, Pieces
from millrace.common.fingerprints.scale import (
    SEARCHED_STEPS,
    SILENCE,
    SPAN_SECONDS,
    STEP_SECONDS,
)
from millrace.common.fingerprints.words import words
from tests.common.fingerprints import planted
from tests.common.fingerprints.planted import Copy, Cut, coded
from tests.corpora import RATE, noise

SECONDS = 30.0


def pieces(recordings: dict[int, np.ndarray], steps: int, seconds: float = 3.0) -> Pieces:
    """Pieces of 3 s with half a second between them."""
    cuts = []
    for recording, samples in recordings.items():
        for start in np.arange(0.1, len(samples) / RATE - seconds, seconds + 0.5):
            cuts.append(Cut(recording, start, start + seconds))
    return planted.pieces(recordings, cuts, steps)


# Of bytes that were cut, the offset is not known that exactly.
KINDS = {name: make for name, make in planted.KINDS.items() if not name.startswith("bytes")}
KINDS |= {
    "prefix": lambda x: Copy(x[: 12 * RATE]),
    "suffix": lambda x: Copy(x[round(17.3 * RATE) :], 17.3),
    "middle": lambda x: Copy(x[5 * RATE : 16 * RATE], 5.0),
    "between two steps": lambda x: Copy(x[64:], 0.004),
}


@pytest.fixture(scope="module")
def known() -> Known:
    return Known(pieces({number: noise(SECONDS, number) for number in range(6)}, 1))


@pytest.mark.parametrize("kind", KINDS)
def test_each_piece_of_a_copy_is_found_with_its_offset(known, kind):
    copy, offset = KINDS[kind](noise(SECONDS, 3))
    searched = pieces({0: copy, 1: noise(SECONDS, 50)}, SEARCHED_STEPS)
    found = matches.find(searched, known)
    assert {match.piece for match in found} == set(np.flatnonzero(searched.recordings == 0))
    for match in found:
        assert known.pieces.recordings[match.of_piece] == 3
        assert match.offset == pytest.approx(offset, abs=0.02)
        assert 1.0 <= match.seconds <= 3.1 and match.errors <= 0.2


def test_sound_has_the_same_words_in_parts(monkeypatch):
    sound = noise(SECONDS, 3)
    whole = words(sound, RATE)
    monkeypatch.setattr(f"{words.__module__}._AT_ONCE", 100)
    assert (words(sound, RATE) == whole).all()


def test_a_piece_is_found_through_its_neighbours_though_it_shares_no_word(known):
    copy = noise(SECONDS, 3)
    searched = pieces({0: copy}, SEARCHED_STEPS)
    # One bit of every word of the second piece differs.
    first, second = searched.counts[0], searched.counts[:2].sum()
    searched.words[first:second] ^= 1 << 7
    found = {match.piece: match for match in matches.find(searched, known)}
    assert found.keys() == set(range(len(searched)))
    assert found[1].errors == pytest.approx(found[0].errors + 1 / 32, abs=0.02)


def test_neighbours_are_found_at_each_offset_of_a_copy(known):
    """Of a copy that lacks four seconds, a piece of each part shares no word."""
    original = noise(SECONDS, 3)
    copy = np.concatenate([original[: 14 * RATE], original[18 * RATE :]])
    searched = pieces({0: copy}, SEARCHED_STEPS)
    ends = searched.ends
    for piece in (1, 5):
        searched.words[ends[piece - 1] : ends[piece]] ^= 1 << 7
    found = {match.piece: match.offset for match in matches.find(searched, known)}
    assert found.keys() == set(range(len(searched)))
    assert found[1] == pytest.approx(0.0, abs=0.02) and found[5] == pytest.approx(4.0, abs=0.02)


def test_a_piece_goes_if_half_of_it_or_half_of_the_other_is_common(known):
    shared, other = noise(SECONDS, 3), noise(SECONDS, 70)
    for common, is_found in ((1.2, False), (2.0, True)):
        mixed = other.copy()
        end = round((0.1 + common) * RATE)
        mixed[:end] = shared[:end]
        found = matches.find(pieces({1: shared[: 4 * RATE], 0: mixed}, SEARCHED_STEPS), known)
        assert [match.piece for match in found] == [0] + [1] * is_found
    # A short piece of the original lies in a long one: a tenth of that, but all of the original.
    long = np.concatenate([other[: 9 * RATE], shared[: 4 * RATE], other[9 * RATE : 20 * RATE]])
    found = matches.find(pieces({0: long}, SEARCHED_STEPS, seconds=23.0), known)
    assert [(match.piece, match.of_piece) for match in found] == [(0, 3 * 8)]


def test_a_jingle_of_many_recordings_is_shared_once():
    jingle = noise(SECONDS, 3)[: round(1.2 * RATE)]

    def with_jingle(seed: int) -> np.ndarray:
        return np.concatenate([jingle, noise(2.5, seed)])

    known = Known(pieces({seed: with_jingle(seed) for seed in range(70, 74)}, 1))
    assert matches.find(pieces({0: with_jingle(80)}, SEARCHED_STEPS), known) == []


def test_silence_and_hum_are_no_common_sound():
    def humming(seed: int) -> np.ndarray:
        time = np.arange(30 * RATE) / RATE
        hum = 3000 * np.sin(2 * np.pi * 400 * time) + np.random.default_rng(seed).normal(
            size=time.size
        )
        return hum.astype(np.int16)

    def with_gap(seed: int) -> np.ndarray:
        sound = noise(30, seed)
        sound[5 * RATE : 25 * RATE] = 0
        return sound

    def with_gap_in_opus(seed: int) -> np.ndarray:
        return coded(with_gap(seed), "ogg", "libopus", 24_000).samples

    silent = np.zeros(30 * RATE, np.int16)
    for make in (humming, with_gap, with_gap_in_opus, lambda seed: silent):
        searched = pieces({0: make(1)}, SEARCHED_STEPS)
        assert matches.find(searched, Known(pieces({0: make(2)}, 1))) == []


@pytest.mark.parametrize("occurrences, pairs", [(64, 64), (65, 0)])
def test_a_word_that_occurs_too_often_tells_nothing_apart(occurrences, pairs):
    known = Known(one(np.full(occurrences, 7, np.uint32)))
    assert len(known.equal(np.array([7], np.uint32))[0]) == pairs


def one(words: np.ndarray) -> Pieces:
    return Pieces(words, np.array([len(words)]), np.array([0]), np.array([0.0]))


def test_of_two_places_of_a_piece_the_longer_one_counts():
    """The known piece has the beginning of it once more, later."""
    sound = noise(3.0, 3)
    twice = np.concatenate([sound, noise(1.0, 4), sound[: 2 * RATE]])
    searched = one(words(sound, RATE, SEARCHED_STEPS))
    [match] = matches.find(searched, Known(one(words(twice, RATE))))
    assert match.offset == pytest.approx(0.0, abs=0.02) and match.seconds > 2.5


@pytest.mark.parametrize(
    "equal, bits, is_found",
    [(3, 3, True), (2, 3, False), (3, 6, True), (3, 7, False)],
)
def test_three_equal_words_show_a_copy_of_which_a_fifth_of_the_bits_may_differ(
    equal, bits, is_found
):
    drawn = np.random.default_rng(5).integers(1, 1 << 32, 60 * SEARCHED_STEPS, np.uint32)
    searched = drawn[::SEARCHED_STEPS].copy()
    searched[equal:] ^= np.uint32((1 << bits) - 1)
    assert bool(matches.find(one(searched), Known(one(drawn)))) == is_found


@pytest.mark.parametrize("later, is_found", [(1, True), (2, False)])
def test_equal_words_a_step_later_are_of_the_same_copy(later, is_found):
    drawn = np.random.default_rng(5).integers(1, 1 << 32, 60 * SEARCHED_STEPS, np.uint32)
    searched = drawn[::SEARCHED_STEPS].copy()
    searched[2:] ^= np.uint32(0b111)
    searched[9] = drawn[9 * SEARCHED_STEPS + later]
    assert bool(matches.find(one(searched), Known(one(drawn)))) == is_found


def test_silence_of_both_makes_no_copy_of_three_equal_words():
    sound = np.random.default_rng(5).integers(1, 1 << 32, 60 * SEARCHED_STEPS, np.uint32)
    sound[3 * SEARCHED_STEPS :] = SILENCE
    assert matches.find(one(sound[::SEARCHED_STEPS]), Known(one(sound))) == []


def test_words_stand_where_they_are_said_to():
    sound = noise(2.0, 1)
    dense = words(sound, RATE)
    assert len(dense) == round((2.0 - SPAN_SECONDS) / STEP_SECONDS) + 1
    assert (words(sound, RATE, 4) == dense[::4]).all()
    assert len(words(sound[: round(0.3 * RATE)], RATE)) == 0 and len(words(sound[:0], RATE)) == 0
    # The level is no part of them: all of 8 bits keep nearly all.
    quiet = words((sound // 256), RATE)
    assert np.bitwise_count(quiet ^ dense).mean() < 3
