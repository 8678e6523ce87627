"""When samples of two splits are a pair: by bytes, sound, picture, transcript and duration, or
recording id; with offset and confidence."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, product
from typing import NamedTuple

from millrace.audit.splits.content import Content
from millrace.common.fingerprints import matches, pictures
from millrace.common.fingerprints.matches import Known, Match, Pieces
from millrace.common.fingerprints.scale import SEARCHED_STEPS, SPAN_SECONDS, STEP_SECONDS

# Stretches touch each other: the last word of one looks so many seconds into the next.
_OVERLAP = SPAN_SECONDS - SEARCHED_STEPS * STEP_SECONDS
# Words of train that are compared at once, 9 hours of sound; and samples.
_WORDS_AT_ONCE = 500_000
_SAMPLES_AT_ONCE = 20_000
# Equal transcripts of so many words are no chance, if the durations are equal too ...
_FEWEST_WORDS = 4
# ... within so many seconds.
_SAME_DURATION = 0.01


class Held(NamedTuple):
    """A sample that is held out, all of whose words are given."""

    split: str
    content: Content


class Pair(NamedTuple):
    """A sample that lies in a split too that is held out.

    What is at t seconds in `sample` is at t + `offset` in `held_out`, for `seconds`; both are None
    if nobody knows. `confidence` is 1 for equal bytes, the share of equal bits of the fingerprints
    for sound, 1 less the mean difference of the pixels for pictures, and None where nothing was
    heard or seen.
    """

    sample: str
    split: str
    held_out: str
    of_split: str
    how: str
    offset: float | None = None
    seconds: float | None = None
    confidence: float | None = None


_Meeting = tuple[int, int]  # a sample's number in its chunk, and the row of one that is held out


class Comparison:
    """Samples of splits that are held out, with which those of others are compared."""

    def __init__(self, rows: Sequence[Held]) -> None:
        self._rows = rows
        contents = [held.content for held in rows]
        self._by_key = {how: _by_key(contents, key) for how, key in _KEYS.items()}
        self._by_look = _by_key(contents, _look)
        self._known = Known(Pieces.of([content.words for content in contents], 1))
        self._recordings: set[tuple[str, ...]] = set()  # that were named

    def pairs(self, split: str, contents: Iterable[Content]) -> Iterator[Pair]:
        """The pairs of these samples of `split` with what is held out in other splits; of the
        samples, words stand SEARCHED_STEPS apart.

        A pair is found in one way, the surest. A sample is named once with each split for equal
        bytes, pictures or transcripts, and once for each pair of samples that sound alike; a
        recording is named once with each split.
        """
        for chunk in _chunks(contents):
            found: dict[_Meeting, Pair] = {}
            for meeting, pair in chain(
                self._equal(split, chunk, "bytes"),
                self._heard(split, chunk),
                self._seen(split, chunk),
                self._equal(split, chunk, _TRANSCRIPT),
                self._equal(split, chunk, _RECORDING),
            ):
                found.setdefault(meeting, pair)
            yield from found.values()

    def _equal(
        self, split: str, chunk: Sequence[Content], how: str
    ) -> Iterator[tuple[_Meeting, Pair]]:
        """The pairs of samples that have the same key, of each one the first in each split."""
        key = _KEYS[how]
        for number, content in enumerate(chunk):
            done = {split}
            for row in self._by_key[how].get(key(content), ()):
                held = self._rows[row]
                if held.split in done or not _lasts_as_long(how, content, held.content):
                    continue
                done.add(held.split)
                meeting = (content.sample.recording, split, held.split)
                if how == _RECORDING and meeting in self._recordings:
                    continue
                if how == _RECORDING:
                    self._recordings.add(meeting)
                yield (number, row), _pair(split, content, held, how)

    def _heard(self, split: str, chunk: Sequence[Content]) -> Iterator[tuple[_Meeting, Pair]]:
        """The pairs of samples that sound alike."""
        words = [content.words for content in chunk]
        searched = Pieces.of(words, SEARCHED_STEPS)
        shared: dict[_Meeting, list[Match]] = defaultdict(list)
        for match in matches.find(searched, self._known):
            number = int(searched.recordings[match.piece])
            row = int(self._known.pieces.recordings[match.of_piece])
            shared[number, row].append(match)
        for (number, row), stretches in shared.items():
            held = self._rows[row]
            if held.split != split:
                pair = _pair(split, chunk[number], held, "sound")
                yield (number, row), _measured(pair, stretches)

    def _seen(self, split: str, chunk: Sequence[Content]) -> Iterator[tuple[_Meeting, Pair]]:
        """The pairs of pictures that show the same, of each one the nearest in each split."""
        of_look = _by_key(chunk, _look)
        looks = pictures.near(list(of_look), list(self._by_look))
        seen = []
        for look, known_look in looks:
            for number, row in product(of_look[look], self._by_look[known_look]):
                others = self._rows[row].content.small[None]
                difference = float(pictures.differences(chunk[number].small, others)[0])
                if self._rows[row].split != split and difference <= pictures.MOST_DIFFERENCE:
                    seen.append((difference, number, row))

        done = set()
        for difference, number, row in sorted(seen):
            held = self._rows[row]
            if (number, held.split) not in done:
                done.add((number, held.split))
                pair = _pair(split, chunk[number], held, "picture")
                yield (number, row), pair._replace(confidence=1 - difference / 255)


def _by_key(contents: Sequence[Content], key: Callable[[Content], str]) -> dict[str, list[int]]:
    """The numbers of the samples by their keys; those without one are left out."""
    rows: dict[str, list[int]] = defaultdict(list)
    for row, content in enumerate(contents):
        value = key(content)
        if value:
            rows[value].append(row)
    return dict(rows)


def _look(content: Content) -> str:
    return content.look


def _transcript(content: Content) -> str:
    """The words of a transcript that is no chance; "" without one."""
    words = content.sample.transcript.casefold().split()
    is_known = len(words) >= _FEWEST_WORDS and content.seconds is not None
    return " ".join(words) if is_known else ""


# How a pair is found, but for its sound and its picture.
_TRANSCRIPT = "transcript and duration"
_RECORDING = "recording id"
_KEYS: dict[str, Callable[[Content], str]] = {
    "bytes": lambda content: content.sha256,
    _TRANSCRIPT: _transcript,
    _RECORDING: lambda content: content.sample.recording,
}


def _lasts_as_long(how: str, content: Content, other: Content) -> bool:
    """Whether two that are equal by a transcript last as long; both durations are known then."""
    if how != _TRANSCRIPT:
        return True
    assert content.seconds is not None
    assert other.seconds is not None
    return abs(content.seconds - other.seconds) <= _SAME_DURATION


def _pair(split: str, content: Content, held: Held, how: str) -> Pair:
    pair = Pair(
        sample=content.sample.name,
        split=split,
        held_out=held.content.sample.name,
        of_split=held.split,
        how=how,
    )
    if how != "bytes":
        return pair
    offset = None if content.seconds is None else 0.0
    return pair._replace(offset=offset, seconds=content.seconds, confidence=1.0)


def _measured(pair: Pair, stretches: Sequence[Match]) -> Pair:
    """The pair with the offset of its longest stretch, and the means of all."""
    seconds = sum(match.seconds for match in stretches)
    errors = sum(match.errors * match.seconds for match in stretches) / seconds
    seconds -= (len(stretches) - 1) * _OVERLAP
    longest = max(stretches, key=lambda match: match.seconds)
    return pair._replace(offset=longest.offset, seconds=seconds, confidence=1 - errors)


def _chunks(contents: Iterable[Content]) -> Iterator[list[Content]]:
    """Samples without their bytes, as many as are compared at once."""
    chunk: list[Content] = []
    size = 0
    for content in contents:
        chunk.append(content)
        size += len(content.words)
        if size >= _WORDS_AT_ONCE or len(chunk) == _SAMPLES_AT_ONCE:
            yield chunk
            chunk = []
            size = 0
    yield chunk
