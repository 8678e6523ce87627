"""Rows of dev and test, and which rows of other splits are the same samples or have the same
bytes."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

import numpy as np
import pyarrow as pa

# How rows of equal bytes are found: by what is read of members of one size, or not at all.
BY_BYTES, NOT_AT_ALL = "bytes", "none"
COPIES = (BY_BYTES, NOT_AT_ALL)
# Of members of one size this much is read first, from their middle: where it differs, so do they.
PAGE = 4096
_CHUNK = 1 << 20


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
    all bytes where these agree. `bytes_read` says how many that were, `unreadable` of how many
    members none could be read.
    """

    def __init__(self, tars: Sequence[str], copies: str, threads: int) -> None:
        self._tars, self._copies, self._threads = tars, copies, threads
        self._splits: list[_Split] = []
        self.bytes_read = self.unreadable = 0

    def add(self, name: str, parts: Sequence[Rows]) -> None:
        """Add a split, given in parts."""
        if parts:
            self._splits.append(_Split(name, parts))

    def leaks(self, rows: Rows) -> list[Leak]:
        """The rows that are held out too, each once, by number."""
        found: dict[int, Leak] = {}
        for split in self._splits:
            is_same = np.isin(rows.keys, split.keys)
            for row in np.flatnonzero(is_same).tolist():
                found.setdefault(row, Leak(row, split.name, f"is also in {split.name}"))

        by_bytes = self._splits if self._copies == BY_BYTES else []
        for split in by_bytes:
            is_candidate = np.isin(rows.sizes, split.rows.sizes)
            is_candidate[list(found)] = False
            for row, of in self._equal(rows, np.flatnonzero(is_candidate), split):
                original = f"{split.rows.names[of]} in {self._tars[split.rows.tars[of]]}"
                detail = f"the same bytes as {original}, which is in {split.name}"
                found[row] = Leak(row, split.name, detail)
        return sorted(found.values())

    def _equal(
        self, rows: Rows, candidates: np.ndarray, split: _Split
    ) -> Iterator[tuple[int, int]]:
        """The candidates among the rows that have the bytes of a row of a split, and that row's
        number."""
        unread = split.unread(rows.sizes[candidates])
        split.add_pages(unread, self._hashes(split.rows, unread, whole=False))
        pages = self._hashes(rows, candidates, whole=False)

        keys = list(zip(rows.sizes[candidates].tolist(), pages, strict=True))
        unhashed = split.unhashed(set(keys))
        split.add_digests(unhashed, self._hashes(split.rows, unhashed, whole=True))
        has_page = np.array([key in split.by_page for key in keys], bool)
        alike = candidates[has_page]
        digests = self._hashes(rows, alike, whole=True)
        for row, digest in zip(alike.tolist(), digests, strict=True):
            if digest in split.by_digest:
                yield row, split.by_digest[digest]

    def _hashes(self, rows: Rows, numbers: np.ndarray, whole: bool) -> list[bytes]:
        """Hashes of the members of some rows, or of a page of each; empty for one that cannot be
        read. Each tar is read from its beginning to its end."""
        chosen = rows.take(numbers)
        order = np.lexsort((chosen.offsets, chosen.tars))
        groups = np.split(order, np.flatnonzero(np.diff(chosen.tars[order])) + 1)
        hashes = [b""] * len(numbers)
        with ThreadPoolExecutor(self._threads) as pool:
            for group, read in zip(
                groups, pool.map(partial(self._read, chosen, whole), groups), strict=True
            ):
                for number, (digest, size) in zip(group.tolist(), read, strict=True):
                    hashes[number] = digest
                    self.bytes_read += size
                    self.unreadable += not digest
        return hashes

    def _read(self, rows: Rows, whole: bool, numbers: np.ndarray) -> list[tuple[bytes, int]]:
        """The hashes of members of one tar, and how many bytes were read for each."""
        if not len(numbers):
            return []
        try:
            with open(self._tars[rows.tars[numbers[0]]], "rb") as tar:
                return [_hash(tar.fileno(), rows, number, whole) for number in numbers]
        except (OSError, ValueError):  # ValueError: a zero byte in the path
            return [(b"", 0)] * len(numbers)


class _Split:
    """A held-out split: its rows, and what was read of them.

    `by_page` has the numbers of rows by the size and the page of their members, `by_digest` the
    first row of each content.
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
        self.keys = np.sort(self.rows.keys)
        self.by_page: dict[tuple[int, bytes], list[int]] = {}
        self.by_digest: dict[bytes, int] = {}
        self._is_read = np.zeros(len(self.keys), bool)
        self._is_hashed = np.zeros(len(self.keys), bool)

    def unread(self, sizes: np.ndarray) -> np.ndarray:
        """The numbers of rows of these sizes whose pages are not known yet."""
        return np.flatnonzero(np.isin(self.rows.sizes, sizes) & ~self._is_read)

    def add_pages(self, numbers: np.ndarray, pages: Sequence[bytes]) -> None:
        self._is_read[numbers] = True
        for number, page in zip(numbers.tolist(), pages, strict=True):
            if page:
                self.by_page.setdefault((int(self.rows.sizes[number]), page), []).append(number)

    def unhashed(self, pages: Collection[tuple[int, bytes]]) -> np.ndarray:
        """The numbers of rows with these pages whose digests are not known yet."""
        numbers = [number for page in pages for number in self.by_page.get(page, ())]
        chosen = np.array(sorted(numbers), np.int64)
        return chosen[~self._is_hashed[chosen]]

    def add_digests(self, numbers: np.ndarray, digests: Sequence[bytes]) -> None:
        self._is_hashed[numbers] = True
        for number, digest in zip(numbers.tolist(), digests, strict=True):
            if digest:
                self.by_digest.setdefault(digest, number)


def _hash(tar: int, rows: Rows, number: int, whole: bool) -> tuple[bytes, int]:
    """The hash of a member or of its page, empty if the tar ends before, and the bytes read."""
    offset, size = int(rows.offsets[number]), int(rows.sizes[number])
    start, stop = offset, offset + size
    if not whole and size > PAGE:
        start = offset + (size - PAGE) // 2
        stop = start + PAGE
    digest = hashlib.sha256()
    for place in range(start, stop, _CHUNK):
        wanted = min(_CHUNK, stop - place)
        content = os.pread(tar, wanted, place)
        if len(content) < wanted:
            return b"", len(content)
        digest.update(content)
    return digest.digest(), stop - start
