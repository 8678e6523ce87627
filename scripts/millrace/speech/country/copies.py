"""Segments of train whose sound lies in validation or test, and those of validation that lie in
test: they are left out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
import pandas as pd
import pyarrow.parquet as pq

from millrace.common import jsonl
from millrace.common.errors import own_file
from millrace.common.fingerprints import matches
from millrace.common.fingerprints.matches import Known, Pieces
from millrace.common.fingerprints.scale import SEARCHED_STEPS
from millrace.speech.columns import COMPLETED, DUPLICATE
from millrace.speech.corpus.splits import SPLITS
from millrace.speech.names import Partition
from millrace.speech.shards.index import word_steps

_BYTES_A_WORD = 4
_COLUMNS = ["key", "country", "video_id", "start_seconds", "sha256", "words"]
# A segment that is cut, in a tar or left out of it.
_IS_CUT = [("status", "in", [COMPLETED, DUPLICATE])]


class Copy(NamedTuple):
    """A segment that repeats one of a held-out split, which stays.

    What is at t seconds in `recording` is at t + `offset` in `of_recording`.
    """

    key: str
    recording: str
    split: str
    of_key: str
    of_recording: str
    of_split: str
    offset: float

    @property
    def detail(self) -> str:
        """For people: what it repeats."""
        original = f"{self.of_key} of {self.of_recording}"
        return f"the same audio as {original}, which is in {self.of_split}"


class Prints(NamedTuple):
    """The segments of partitions of one split, with their SHA-256 and fingerprints."""

    split: str
    table: pd.DataFrame

    @classmethod
    def read(cls, paths: Sequence[Path]) -> Self:
        tables = []
        for path in paths:
            with own_file(path):
                table = pq.read_table(path, columns=_COLUMNS, filters=_IS_CUT, partitioning=None)
                tables.append(table.to_pandas())
        table = pd.concat(tables, ignore_index=True)
        table["recording"] = table["country"] + "/" + table["video_id"]
        return cls(split_of(paths[0]), table)

    def pieces(self, every: int = 1) -> Pieces:
        """The fingerprints, with every so many-th word of each."""
        words = [np.frombuffer(row, np.uint32)[::every] for row in self.table["words"]]
        return Pieces(
            np.concatenate([np.zeros(0, np.uint32), *words]),
            np.array([len(row) for row in words], np.int64),
            self.table["recording"].astype("category").cat.codes.to_numpy(),
            self.table["start_seconds"].to_numpy(),
        )

    def without_words(self) -> Self:
        """The same without the fingerprints, which take most of the memory."""
        return self._replace(table=self.table.drop(columns="words"))


def split_of(index: Path) -> str:
    """The split of a partition, from the path of its index."""
    partition = Partition.parse(index.parent.name)
    return partition.split if partition else ""


def held_out(listed: str, shards_dir: str) -> list[Path]:
    """The indices of the held-out partitions of all countries that a file lists."""
    names = jsonl.read(listed)["partitions"]
    return [Path(shards_dir, "partitions", name, "index.parquet") for name in names]


def find(own: Iterable[Path], held_out: Iterable[Path]) -> list[Copy]:
    """The copies in a country's partitions, given by their indices, of what lies in the held-out
    partitions of all countries: one for each segment, of test if it lies there."""
    own = sorted(own)
    found: dict[str, Copy] = {}
    for chunk in _chunks(list(held_out)):
        known_pieces = Known(chunk.pieces())
        known = chunk.without_words()
        del chunk
        for path in own:
            if SPLITS.index(split_of(path)) >= SPLITS.index(known.split):
                continue
            searched = Prints.read([path])
            for copy in _copies(searched, known, known_pieces):
                found.setdefault(copy.key, copy)
    return sorted(found.values())


def _chunks(held_out: Sequence[Path]) -> Iterator[Prints]:
    """The segments of test, then of validation, as many at once as memory holds."""
    for split in reversed(SPLITS[1:]):
        waiting: list[Path] = []
        size = 0
        for path in sorted(path for path in held_out if split_of(path) == split):
            waiting.append(path)
            size += path.stat().st_size
            if size >= matches.WORDS_AT_ONCE * _BYTES_A_WORD:
                yield Prints.read(waiting)
                waiting = []
                size = 0
        if waiting:
            yield Prints.read(waiting)


def _copies(searched: Prints, known: Prints, known_pieces: Known) -> Iterator[Copy]:
    """The segments of `searched` that have the bytes, or the sound, of one of `known`."""
    first = known.table.drop_duplicates("sha256").reset_index().set_index("sha256")["index"]
    same = searched.table["sha256"].map(first).dropna().astype(int)
    for row, of_row in same.items():
        yield _copy(searched, int(row), known, int(of_row))
    if len(known_pieces.pieces.words):
        every = SEARCHED_STEPS // word_steps(searched.split)
        for match in matches.find(searched.pieces(every), known_pieces):
            copy = _copy(searched, match.piece, known, match.of_piece)
            yield copy._replace(offset=match.offset)


def _copy(searched: Prints, row: int, known: Prints, of_row: int) -> Copy:
    """The copy of one segment, whose beginnings are the same."""
    own = searched.table.loc[row]
    of = known.table.loc[of_row]
    return Copy(
        own["key"],
        own["recording"],
        searched.split,
        of["key"],
        of["recording"],
        known.split,
        offset=float(of["start_seconds"] - own["start_seconds"]),
    )
