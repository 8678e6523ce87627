"""The sound of held-out rows, by which copies of it are found (cut, shifted, or encoded anew): how
long a clip may be, and how many are compared at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from millrace.common.fingerprints import matches
from millrace.common.fingerprints.matches import Known, Pieces
from millrace.common.fingerprints.scale import SEARCHED_STEPS
from millrace.common.fingerprints.words import words
from millrace.common.loading.bad_samples import SampleError
from millrace.common.loading.decode import decode_mono

# Rows that are compared at once: some nine hours of sound.
ROWS_AT_ONCE = 4096
# What is longer is no utterance: as stereo of 48 kHz it takes 700 MB.
_MOST_SECONDS = 1800.0


def fingerprint(content: bytes, steps: int) -> np.ndarray | None:
    """The words of a member's sound, `steps` apart; None for what cannot be decoded."""
    try:
        samples, rate = decode_mono(content, _MOST_SECONDS)
    except SampleError:
        return None
    return words(samples, rate, steps)


class Sounds:
    """The fingerprints of a split's rows, on disk in parts that memory holds."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self._folder = folder
        self._parts: list[Path] = []
        self._waiting: list[np.ndarray] = []

    def add(self, fingerprints: Iterable[np.ndarray]) -> None:
        """Add the fingerprints of the next rows, with all their words."""
        self._waiting += fingerprints
        if sum(map(len, self._waiting)) >= matches.WORDS_AT_ONCE:
            self.flush()

    def flush(self) -> None:
        """Write what is in memory."""
        if not self._waiting:
            return
        path = self._folder / f"{len(self._parts):06d}.npz"
        counts = [len(each) for each in self._waiting]
        np.savez(path, words=np.concatenate(self._waiting), counts=counts)
        self._parts.append(path)
        self._waiting = []

    def copies(self, fingerprints: Sequence[np.ndarray]) -> Iterator[tuple[int, int]]:
        """The numbers of fingerprints, whose words stand SEARCHED_STEPS apart, that are copies of
        a row, and that row's number."""
        first_row = 0
        for path in self._parts:
            with np.load(path) as part:
                ends = np.cumsum(part["counts"])
                rows = np.split(part["words"], ends[:-1])
            known = Known(Pieces.of(rows, 1))
            for first in range(0, len(fingerprints), ROWS_AT_ONCE):
                chunk = fingerprints[first : first + ROWS_AT_ONCE]
                searched = Pieces.of(chunk, SEARCHED_STEPS)
                for match in matches.find(searched, known):
                    number = int(searched.recordings[match.piece])
                    row = int(known.pieces.recordings[match.of_piece])
                    yield first + number, first_row + row
            first_row += len(rows)
