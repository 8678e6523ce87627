"""When two pieces hold the same sound, by their fingerprints: how many bits may differ, for how
long, and how much of a piece must be shared."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Self

import numpy as np

from millrace.common.fingerprints.scale import (
    SEARCHED_STEPS,
    SILENCE,
    SPAN_SECONDS,
    STEP_SECONDS,
)

_SEARCHED_SECONDS = SEARCHED_STEPS * STEP_SECONDS
# A word that occurs more often is a hum, or a tone, and tells nothing apart.
_MOST_OCCURRENCES = 64
# So many equal words at one offset are looked at bit by bit.
_FEWEST_VOTES = 3
# Sounds that have nothing in common differ in half of the bits, copies of 24 kbit/s in 6 %. Two
# pieces are alike where at most this share differs, over half a second ...
_MOST_ERRORS_NEAR = 0.3
_NEAR = 8  # words
# (but for the words at its ends that differ in half of their bits) ...
_MOST_ERRORS_OF_WORD = 0.4
# ... and all together at most this one, for a second or more.
_MOST_ERRORS = 0.2
_LEAST_SECONDS = 1.0
# Offsets of one copy differ by a step or two; seconds.
_SAME_OFFSET = 2 * STEP_SECONDS
# A copy shares half of its own sound, or half of the other piece.
_LEAST_SHARE = 0.5
# Known words that are in memory at once: about 70 hours of sound, a gigabyte.
WORDS_AT_ONCE = 32_000_000
# What two long recordings share is found from this length on.
_STRETCH_SECONDS = 10.0


@dataclass(frozen=True)
class Pieces:
    """Pieces of sound and their fingerprints, in an order that is given.

    `words`: uint32, of all pieces one after the other; `counts`: how many each piece has;
    `recordings`: the number of the recording that each is from; `starts`: where it begins in there,
    in seconds.
    """

    words: np.ndarray
    counts: np.ndarray
    recordings: np.ndarray
    starts: np.ndarray

    @classmethod
    def of(cls, fingerprints: Sequence[np.ndarray], steps: int) -> Self:
        """The stretches of fingerprints whose words stand `steps` apart; `recordings` are their
        numbers."""
        step = steps * STEP_SECONDS
        counts: list[int] = []
        recordings: list[int] = []
        starts: list[float] = []
        for number, words in enumerate(fingerprints):
            stretches = max(1, round(len(words) * step / _STRETCH_SECONDS))
            ends = np.linspace(0, len(words), stretches + 1).astype(int)
            counts += np.diff(ends).tolist()
            recordings += [number] * stretches
            starts += (ends[:-1] * step).tolist()
        return cls(
            np.concatenate([np.zeros(0, np.uint32), *fingerprints]),
            np.array(counts, np.int64),
            np.array(recordings, np.int64),
            np.array(starts, np.float64),
        )

    def __len__(self) -> int:
        return len(self.counts)

    @cached_property
    def ends(self) -> np.ndarray:
        """Where each piece's words end among all."""
        return np.cumsum(self.counts)

    @cached_property
    def firsts(self) -> np.ndarray:
        """Where each piece's words begin among all."""
        return self.ends - self.counts

    @cached_property
    def by_recording(self) -> dict[int, np.ndarray]:
        """The pieces of each recording."""
        order = np.argsort(self.recordings, kind="stable")
        numbers, firsts = np.unique(self.recordings[order], return_index=True)
        if not len(numbers):  # np.split gives one group of nothing
            return {}
        groups = np.split(order, firsts[1:])
        return dict(zip(numbers.tolist(), groups, strict=True))

    def words_of(self, piece: int) -> np.ndarray:
        """The words of one piece."""
        return self.words[self.firsts[piece] : self.ends[piece]]

    def places(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Of the words at these positions among all: their piece, and their number in it."""
        pieces = np.searchsorted(self.ends, positions, "right")
        return pieces, positions - self.firsts[pieces]


class Known:
    """Pieces that others are compared with: their words are sorted once.

    Takes 12 bytes for each word, and 20 while it is made.
    """

    def __init__(self, pieces: Pieces) -> None:
        self.pieces = pieces
        rows = pieces.words.astype(np.uint64) << np.uint64(32)
        rows |= np.arange(len(rows), dtype=np.uint64)
        rows.sort()
        self._positions = rows.astype(np.uint32)  # the lower half
        rows >>= np.uint64(32)
        self._words = rows.astype(np.uint32)

    def equal(self, words: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Pairs of equal words: the positions of those of `words`, and of those of the pieces.

        Words that tell nothing apart are left out.
        """
        order = np.argsort(words)  # neighbours lie in the processor's cache
        wanted = words[order]
        first = np.searchsorted(self._words, wanted, "left")
        inside = np.flatnonzero(first < len(self._words))
        hits = inside[self._words[first[inside]] == wanted[inside]]
        hits = hits[wanted[hits] != SILENCE]
        counts = np.searchsorted(self._words, wanted[hits], "right") - first[hits]
        is_rare = counts <= _MOST_OCCURRENCES
        hits = hits[is_rare]
        counts = counts[is_rare]

        begins = np.cumsum(counts) - counts
        within = np.arange(counts.sum()) - np.repeat(begins, counts)
        places = np.repeat(first[hits], counts) + within
        positions = np.repeat(order[hits], counts)
        return positions, self._positions[places].astype(np.int64)


class Match(NamedTuple):
    """Sound that a piece shares with another one.

    `offset`: what is at t seconds in the recording of `piece` is at t + offset in that of
    `of_piece`. `seconds` are alike; `errors` is the share of bits that differ there, and `alike`
    are the numbers of the words of `piece` that stand there.
    """

    piece: int
    of_piece: int
    offset: float
    seconds: float
    errors: float
    alike: np.ndarray


def find(searched: Pieces, known: Known) -> list[Match]:
    """The pieces of `searched` that are copies of known ones, or hold half of one.

    Of `searched` every SEARCHED_STEPS-th word is given, of `known` every word. Equal words at one
    offset show a pair. Where two recordings share a piece, their other pieces are compared at the
    same offset, whatever words they share.
    """
    comparison = _Comparison(searched, known.pieces)
    for piece, of_piece, shift in _candidates(searched, known).tolist():
        comparison.add(piece, of_piece, shift)
    comparison.add_neighbours()
    return sorted(_copies(comparison.matches.values(), searched, known.pieces))


def _copies(matches: Collection[Match], searched: Pieces, known: Pieces) -> Iterator[Match]:
    """The matches of pieces of which half lies in others, or that hold half of another one."""
    # A jingle that many others have is shared once.
    is_shared = np.zeros(len(searched.words) + 1, np.int64)
    firsts = searched.firsts
    for match in matches:
        is_shared[firsts[match.piece] + match.alike + 1] = 1
    shared_before = np.cumsum(is_shared)
    shared = _seconds(shared_before[searched.ends] - shared_before[firsts], SEARCHED_STEPS)
    lengths = _seconds(searched.counts, SEARCHED_STEPS)
    known_lengths = _seconds(known.counts, 1)
    for match in matches:
        is_copy = shared[match.piece] >= _LEAST_SHARE * lengths[match.piece]
        if is_copy or match.seconds >= _LEAST_SHARE * known_lengths[match.of_piece]:
            yield match


def _seconds(counts: np.ndarray, steps: int) -> np.ndarray:
    """The sound that words tell of, from their number."""
    return (counts - 1) * steps * STEP_SECONDS + SPAN_SECONDS


def _candidates(searched: Pieces, known: Known) -> np.ndarray:
    """Rows (piece, of_piece, shift) of pieces with enough equal words, which stand `shift` steps
    later in the second one."""
    positions, known_positions = known.equal(searched.words)
    pieces, numbers = searched.places(positions)
    known_pieces, known_numbers = known.pieces.places(known_positions)
    shifts = known_numbers - SEARCHED_STEPS * numbers
    return _elected(pieces, known_pieces, shifts)


def _elected(pieces: np.ndarray, known_pieces: np.ndarray, shifts: np.ndarray) -> np.ndarray:
    """The rows (piece, of_piece, shift) that occur often.

    Those of the next shift count too, as a copy lies anywhere between two steps.
    """
    order = np.lexsort((shifts, known_pieces, pieces))
    votes = np.stack([pieces, known_pieces, shifts], axis=1)[order]
    is_new = np.ones(len(votes), bool)
    is_new[1:] = (votes[1:] != votes[:-1]).any(axis=1)
    firsts = np.flatnonzero(is_new)
    rows = votes[firsts]
    counts = np.diff(firsts, append=len(votes))

    is_same_pair = (rows[1:, :2] == rows[:-1, :2]).all(axis=1)
    is_next_shift = rows[1:, 2] == rows[:-1, 2] + 1
    both = counts.copy()
    both[:-1] += np.where(is_same_pair & is_next_shift, counts[1:], 0)
    return rows[both >= _FEWEST_VOTES]


class _Comparison:
    """Pieces compared bit by bit at an offset; `matches` by the numbers of both."""

    def __init__(self, searched: Pieces, known: Pieces) -> None:
        self._searched = searched
        self._known = known
        self.matches: dict[tuple[int, int], Match] = {}

    def add(self, piece: int, of_piece: int, shift: int) -> None:
        """Add the match of two pieces whose words are `shift` steps apart, or one more or less, if
        it is longer than the one that is known."""
        shifts = (shift - 1, shift, shift + 1)
        matches = [self._match(piece, of_piece, near) for near in shifts]
        best = max(matches, key=lambda match: (match.seconds, -match.errors))
        if best.seconds < _LEAST_SECONDS or best.errors > _MOST_ERRORS:
            return
        known = self.matches.get((piece, of_piece))
        if known is None or best.seconds > known.seconds:
            self.matches[piece, of_piece] = best

    def add_neighbours(self) -> None:
        """Add what other pieces of the same two recordings share at the offset of a match."""
        searched = self._searched
        known = self._known
        done: set[tuple[int, int, int]] = set()
        for match in list(self.matches.values()):
            recording = int(searched.recordings[match.piece])
            of_recording = int(known.recordings[match.of_piece])
            meeting = (recording, of_recording, round(match.offset / _SAME_OFFSET))
            if meeting in done:
                continue
            done.add(meeting)
            others = searched.by_recording[recording]
            known_others = known.by_recording[of_recording]
            for piece, of_piece in self._overlapping(others, known_others, match.offset):
                if (piece, of_piece) not in self.matches:
                    later = searched.starts[piece] + match.offset - known.starts[of_piece]
                    self.add(piece, of_piece, round(later / STEP_SECONDS))

    def _overlapping(
        self, pieces: np.ndarray, known_pieces: np.ndarray, offset: float
    ) -> list[tuple[int, int]]:
        """The pairs of pieces that lie at the same time, if one recording starts at `offset`."""
        searched = self._searched
        known = self._known
        starts = searched.starts[pieces] + offset
        ends = starts + searched.counts[pieces] * _SEARCHED_SECONDS
        known_starts = known.starts[known_pieces]
        known_ends = known_starts + known.counts[known_pieces] * STEP_SECONDS
        is_early = starts[:, None] < known_ends
        is_late = known_starts < ends[:, None]
        rows, columns = np.nonzero(is_early & is_late)
        ours = pieces[rows].tolist()
        theirs = known_pieces[columns].tolist()
        return list(zip(ours, theirs, strict=True))

    def _match(self, piece: int, of_piece: int, shift: int) -> Match:
        searched = self._searched
        known = self._known
        words = searched.words_of(piece)
        known_words = known.words_of(of_piece)
        places = np.arange(len(words)) * SEARCHED_STEPS + shift
        in_both = (places >= 0) & (places < len(known_words))
        words = words[in_both]
        known_words = known_words[places[in_both]]
        # Two silences are no common sound.
        is_sound = (words != SILENCE) | (known_words != SILENCE)
        errors = np.bitwise_count(words ^ known_words)[is_sound] / 32
        is_near = _is_near(errors)
        numbers = np.flatnonzero(in_both)[is_sound][is_near]

        offset = known.starts[of_piece] - searched.starts[piece] + shift * STEP_SECONDS
        if not len(numbers):
            return Match(piece, of_piece, float(offset), 0.0, 1.0, numbers)
        seconds = float(_seconds(np.array(len(numbers)), SEARCHED_STEPS))
        share = float(errors[is_near].mean())
        return Match(piece, of_piece, float(offset), seconds, share, numbers)


def _is_near(errors: np.ndarray) -> np.ndarray:
    """Which words lie in a stretch of half a second that is alike."""
    near = np.zeros(len(errors), bool)
    if len(errors) < _NEAR:
        return near
    means = np.convolve(errors, np.full(_NEAR, 1 / _NEAR), "valid")
    for start in np.flatnonzero(means <= _MOST_ERRORS_NEAR):
        near[start : start + _NEAR] = True
    return near & (errors <= _MOST_ERRORS_OF_WORD)
