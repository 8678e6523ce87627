"""Rows of dev and test, and which rows of other splits are the same samples, or have the same bytes
or sound."""

from __future__ import annotations

import hashlib
import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from millrace.asr.buckets.sound import ROWS_AT_ONCE, Sounds, fingerprint
from millrace.common.fingerprints.scale import SEARCHED_STEPS
from millrace.common.leaks.leakage import BY_SOUND, NOT_AT_ALL

# Of members of one size this much is read first, from their middle: where it differs, so do they.
PAGE = 4096
_CHUNK = 1 << 20
# Members of one tar that a thread reads one after the other.
_MEMBERS_AT_ONCE = 64

# The size of a member, and the hash of its page, if that can be read.
_PageKey = tuple[int, bytes | None]

T = TypeVar("T")
# What is made of a member, if it can be read: from a descriptor of the tar, offset and size.
Read = Callable[[int, int, int], T | None]


class Rows(NamedTuple):
    """Rows with the places of their members: keys of samples, numbers of tars, offsets and sizes in
    bytes, and the members' names."""

    keys: np.ndarray
    tars: np.ndarray
    offsets: np.ndarray
    sizes: np.ndarray
    names: pa.Array

    def take(self, numbers: np.ndarray) -> Rows:
        """The rows of these numbers."""
        return Rows(
            self.keys[numbers],
            self.tars[numbers],
            self.offsets[numbers],
            self.sizes[numbers],
            self.names.take(pa.array(numbers)),
        )


class Leak(NamedTuple):
    """A row that is also in a held-out split, by its number; `detail` says what it repeats."""

    row: int
    held_out: str
    detail: str


class HeldOut:
    """The rows of held-out splits, in the order in which they were added: the first one counts.

    Members are compared by their bytes only where their sizes are equal: PAGE bytes of each, and
    all bytes where these agree. By sound, all members are decoded, and the fingerprints of held-out
    ones lie in `folder`.
    """

    def __init__(self, tars: Sequence[str], copies: str, threads: int, folder: Path) -> None:
        self._tars = tars
        self._copies = copies
        self._threads = threads
        self._folder = folder
        self._splits: list[_Split] = []
        self._unread: set[int] = set()  # keys of samples
        self._told = 0

    def add(self, name: str, parts: Sequence[Rows]) -> None:
        """Add a split, given in parts."""
        if not parts:
            return
        split = _Split(name, parts)
        self._splits.append(split)
        if self._copies != NOT_AT_ALL:
            self._add_pages(split)
        if self._copies == BY_SOUND:
            split.sounds = Sounds(self._folder / name)
            count = len(split.rows.keys)
            for first in range(0, count, ROWS_AT_ONCE):
                last = min(first + ROWS_AT_ONCE, count)
                heard = self._heard(split.rows, np.arange(first, last), 1)
                split.sounds.add(heard)
            split.sounds.flush()

    def unread(self) -> int:
        """How many more members than before could not be read, or decoded for their sound."""
        more = len(self._unread) - self._told
        self._told += more
        return more

    def leaks(self, rows: Rows) -> list[Leak]:
        """The rows that are held out too, each once, by number."""
        found: dict[int, Leak] = {}
        for split in self._splits:
            is_same = np.isin(rows.keys, split.rows.keys)
            for row in np.flatnonzero(is_same).tolist():
                found.setdefault(row, Leak(row, split.name, f"is also in {split.name}"))

        if self._copies != NOT_AT_ALL:
            self._find_copies(rows, found)
        return sorted(found.values())

    def _find_copies(self, rows: Rows, found: dict[int, Leak]) -> None:
        """Add the rows of the same bytes, or sound, as held-out ones."""
        heard: dict[int, np.ndarray] = {}
        for split in self._splits:
            is_candidate = np.isin(rows.sizes, split.rows.sizes)
            is_candidate[list(found)] = False
            for row, of in self._equal(rows, np.flatnonzero(is_candidate), split):
                found[row] = self._leak(row, "bytes", split, of)
            if split.sounds is None:
                continue
            if not heard:
                others = np.setdiff1d(np.arange(len(rows.keys)), list(found))
                sounds = self._heard(rows, others)
                heard = dict(zip(others.tolist(), sounds, strict=True))
            numbers = list(heard)
            for number, of in split.sounds.copies(list(heard.values())):
                row = numbers[number]
                found.setdefault(row, self._leak(row, "sound", split, of))

    def _leak(self, row: int, what: str, split: _Split, of: int) -> Leak:
        original = f"{split.rows.names[of]} in {self._tars[split.rows.tars[of]]}"
        return Leak(row, split.name, f"the same {what} as {original}, which is in {split.name}")

    def _equal(
        self, rows: Rows, candidates: np.ndarray, split: _Split
    ) -> Iterator[tuple[int, int]]:
        """The candidates among the rows that have the bytes of a row of a split, and that row's
        number."""
        pages = self._hashes(rows, candidates, whole=False)
        sizes = rows.sizes[candidates].tolist()
        keys = list(zip(sizes, pages, strict=True))
        has_page = np.array([key in split.by_page for key in keys], bool)
        self._add_digests(split, {key for key in keys if key in split.by_page})
        alike = candidates[has_page]
        digests = self._hashes(rows, alike, whole=True)
        for row, digest in zip(alike.tolist(), digests, strict=True):
            if digest in split.by_digest:
                yield row, split.by_digest[digest]

    def _add_pages(self, split: _Split) -> None:
        """Read a page of each row of a split."""
        numbers = np.arange(len(split.rows.keys))
        pages = self._hashes(split.rows, numbers, whole=False)
        for number, (size, page) in enumerate(zip(split.rows.sizes.tolist(), pages, strict=True)):
            if page:
                split.by_page[size, page].append(number)

    def _add_digests(self, split: _Split, pages: set[_PageKey]) -> None:
        """Read the rows of a split that have these pages, unless they are read already."""
        numbers = [number for page in pages - split.hashed for number in split.by_page[page]]
        split.hashed |= pages
        digests = self._hashes(split.rows, np.array(numbers, np.int64), whole=True)
        for number, digest in zip(numbers, digests, strict=True):
            if digest:
                split.by_digest.setdefault(digest, number)

    def _hashes(self, rows: Rows, numbers: np.ndarray, whole: bool) -> list[bytes | None]:
        """Hashes of the members of some rows, or of a page of each; None for one that cannot be
        read."""
        return self._read(rows, numbers, partial(_hash, whole))

    def _heard(
        self, rows: Rows, numbers: np.ndarray, steps: int = SEARCHED_STEPS
    ) -> list[np.ndarray]:
        """The fingerprints of the members of some rows; empty for one that cannot be decoded."""
        heard = self._read(rows, numbers, partial(_hear, steps))
        return [np.zeros(0, np.uint32) if words is None else words for words in heard]

    def _read(self, rows: Rows, numbers: np.ndarray, read: Read[T]) -> list[T | None]:
        """What `read` makes of the members of some rows; None, and noted, for one that cannot be
        read.

        Each tar is read from its beginning to its end."""
        chosen = rows.take(numbers)
        order = np.lexsort((chosen.offsets, chosen.tars))
        edges = np.flatnonzero(np.diff(chosen.tars[order])) + 1
        groups = []
        for group in np.split(order, edges):
            for first in range(0, len(group), _MEMBERS_AT_ONCE):
                groups.append(group[first : first + _MEMBERS_AT_ONCE])
        made: list[T | None] = [None] * len(numbers)

        def read_group(group: np.ndarray) -> None:
            try:
                with open(self._tars[chosen.tars[group[0]]], "rb") as tar:
                    for number in group.tolist():
                        offset = int(chosen.offsets[number])
                        size = int(chosen.sizes[number])
                        made[number] = read(tar.fileno(), offset, size)
            except (OSError, ValueError):  # ValueError: a zero byte in the path
                pass

        with ThreadPoolExecutor(self._threads) as pool:
            list(pool.map(read_group, groups))
        is_unread = [result is None for result in made]
        self._unread.update(chosen.keys[is_unread].tolist())
        return made


class _Split:
    """A held-out split: its rows, and what was read of them.

    `by_page` has the numbers of rows by the size and the page of their members, `hashed` the pages
    whose rows are in `by_digest`, the first row of each content; `sounds` all rows if copies are
    found by their sound.
    """

    def __init__(self, name: str, parts: Sequence[Rows]) -> None:
        self.name = name
        self.rows = Rows(
            np.concatenate([part.keys for part in parts]),
            np.concatenate([part.tars for part in parts]),
            np.concatenate([part.offsets for part in parts]),
            np.concatenate([part.sizes for part in parts]),
            pa.concat_arrays([part.names for part in parts]),
        )
        self.by_page: defaultdict[_PageKey, list[int]] = defaultdict(list)
        self.hashed: set[_PageKey] = set()
        self.by_digest: dict[bytes, int] = {}
        self.sounds: Sounds | None = None


def _hash(whole: bool, tar: int, offset: int, size: int) -> bytes | None:
    """The hash of a member or of its page, None if the tar ends before."""
    start = offset
    stop = offset + size
    if not whole and size > PAGE:
        start = offset + (size - PAGE) // 2
        stop = start + PAGE
    digest = hashlib.sha256()
    for place in range(start, stop, _CHUNK):
        wanted = min(_CHUNK, stop - place)
        content = os.pread(tar, wanted, place)
        if len(content) < wanted:
            return None
        digest.update(content)
    return digest.digest()


def _hear(steps: int, tar: int, offset: int, size: int) -> np.ndarray | None:
    """The fingerprint of a member; None if the tar ends before, or the member is no sound."""
    content = os.pread(tar, size, offset)
    if len(content) == size:
        return fingerprint(content, steps)
    return None
