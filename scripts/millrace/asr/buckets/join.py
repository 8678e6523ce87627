"""Rows joined with the tar index on the hash of (tar, member), part by part, so that no index has to fit in
memory."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import pyarrow as pa

from millrace.asr.buckets import samples
from millrace.asr.buckets.spill import RowSpill
from millrace.asr.manifests import columns as manifests_columns
from millrace.asr.tars.index import TarIndex
from millrace.asr.tars.paths import real_paths
from millrace.common import hashing
from millrace.common.errors import MillraceError

_COLUMNS = ("key", "tar", "offset", "size")


@dataclass(frozen=True)
class Members:
    """Members of tars: `tar` (int32, number in the list of tars asked for), name, offset and size in
    bytes."""

    tar: np.ndarray
    names: pa.Array
    offsets: np.ndarray
    sizes: np.ndarray


class MemberIndex(Protocol):
    """What the bucket build needs of a tar index."""

    def state(self, tar: str) -> tuple[int, int] | str:
        """(size in bytes, mtime_ns) of a tar when it was indexed; or the reason why it has no usable
        index."""

    def remark(self, tar: str) -> str:
        """What a person should know of an indexed tar, such as where it is damaged; "" where nothing is
        odd."""

    def members(self, tars: Sequence[str]) -> Iterator[Members]:
        """All members of `tars`, in pieces of whole tars and of bounded size, each tar's in its order.

        `tar` numbers `tars`; names with or without a ./ prefix; offset -1 for what has no bytes (a
        directory).
        """


def spill_members(
    index: MemberIndex,
    tars: Sequence[str],
    numbers: np.ndarray,
    tar_hashes: np.ndarray,
    seed_key: np.uint64,
    spill: RowSpill,
) -> None:
    """Part the members' addresses by the same key as the rows. `numbers`: the build's number of each of
    `tars`."""
    for piece in index.members(tars):
        tar = numbers[piece.tar]
        keys = row_keys(
            samples.sample_ids(tar_hashes[tar], manifests_columns.bare_names(piece.names)), seed_key
        )
        spill.add(pa.table({"key": keys, "tar": tar, "offset": piece.offsets, "size": piece.sizes}), keys)


def row_keys(ids: np.ndarray, seed_key: np.uint64) -> np.ndarray:
    """The order of rows inside a bucket: ids mixed with the seed, still one key per id."""
    return hashing.mix(ids ^ seed_key)


class Addresses:
    """The addresses of one part's members."""

    def __init__(self, table: pa.Table | None) -> None:
        if table is None:
            table = pa.table(
                {name: pa.array([], pa.uint64() if name == "key" else pa.int64()) for name in _COLUMNS}
            )
        columns = {name: table.column(name).to_numpy() for name in table.column_names}
        order = np.argsort(columns["key"])
        self.key = columns["key"][order]
        if (
            self.key[1:] == self.key[:-1]
        ).any():  # a member twice in its tar: stable, so in the order of the tar
            order = np.lexsort((columns["tar"], columns["key"]))
        self.tar, self.offset, self.size = (columns[name][order] for name in ("tar", "offset", "size"))

    def find(self, keys: np.ndarray, tars: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """int64 offset and size of every (key, tar); of several members of one name the last in the tar.

        Offset -2 where the tar has no such member, -1 where it has no bytes.
        """
        nothing = np.full(len(keys), -2, dtype=np.int64)
        if not len(self.key) or not len(keys):
            return nothing, nothing.copy()
        at = np.searchsorted(self.key, keys, side="right") - 1
        found = (at >= 0) & (self.key[at] == keys)
        # Two tars' members with one 64-bit hash: step back to the row's own tar. Practically never.
        other = found & (self.tar[at] != tars)
        while other.any():
            at[other] -= 1
            found &= (at >= 0) & (self.key[at] == keys)
            other = found & (self.tar[at] != tars)
        return np.where(found, self.offset[at], -2), np.where(found, self.size[at], -2)


PIECE = 200_000  # members at a time, at least; a tar is never split over two pieces


class TarIndices:
    """Indices of partitions of tars as one `member_join.MemberIndex`. Opening them reads their footers
    only."""

    def __init__(self, paths: Iterable[str | os.PathLike]) -> None:
        self._indices = [TarIndex.open(path) for path in paths]
        self._place: dict[str, tuple[int, str]] = {}
        for number, index in enumerate(self._indices):
            for tar in index.tars:
                known = self._place.setdefault(os.path.normpath(tar), (number, tar))
                if known[0] != number:
                    raise MillraceError(
                        f"two indices hold this tar: {self._indices[known[0]].path} and {index.path}",
                        where=tar,
                        remedy="Give the indices of one set of partitions",
                    )
        # Under its full path too, and the one without links, where that is not the name of one already.
        real = real_paths(self._place)
        for path, place in list(self._place.items()):
            self._place.setdefault(os.path.abspath(path), place)
            self._place.setdefault(real[path], place)

    def _found(self, tar: str) -> tuple[int, str] | None:
        found = self._place.get(tar) or self._place.get(os.path.abspath(tar))
        return found or self._place.get(real_paths([tar])[tar])

    def state(self, tar: str) -> tuple[int, int] | str:
        """(size in bytes, mtime_ns) of a tar when it was indexed; or the reason why it has no usable
        index."""
        found = self._found(tar)
        if found is None:
            return "in none of the tar indices"
        record = self._indices[found[0]].tars[found[1]]
        return f"{record.status}: {record.reason}" if record.failed else (record.size, record.mtime_ns)

    def remark(self, tar: str) -> str:
        """What a person should know of an indexed tar; "" where nothing is odd."""
        number, name = self._found(tar) or (-1, "")
        record = self._indices[number].tars[name] if name else None
        return f"{record.status}: {record.reason}" if record and record.reason else ""

    def members(self, tars: Sequence[str]) -> Iterator[Members]:
        """All members of `tars`, in the order of the index files; whole tars, `tar` numbers `tars`."""
        asked = ((*(self._found(tar) or (-1, "")), number) for number, tar in enumerate(tars))
        wanted = [
            (index, self._indices[index].tars[tar].first_row, tar, number)
            for index, tar, number in asked
            if tar
        ]
        piece, rows = [], 0
        for index, _, tar, number in sorted(wanted):
            found = self._indices[index].members(tar)
            piece.append((np.full(len(found), number, np.int32), found))
            rows += len(found)
            if rows >= PIECE:
                yield _joined(piece)
                piece, rows = [], 0
        if rows:
            yield _joined(piece)


def index_files(paths: Iterable[Path]) -> list[Path]:
    """The files among `paths`, and the *.parquet of the folders among them, sorted."""
    return sorted({file for path in paths for file in (path.glob("*.parquet") if path.is_dir() else [path])})


def sweep(folder: Path, indices: Iterable[Path]) -> list[Path]:
    """Remove the indices and reports of partitions that are no more: those in `folder` which are not of
    `indices`.

    Only files named as the workflow names them are touched. Returns what was removed.
    """
    kept = {path.stem for path in indices}
    found = sorted(folder.iterdir()) if folder.is_dir() else []
    stale = [
        path
        for path in found
        if re.fullmatch(r"tars-\d+\.(parquet|json)", path.name) and path.stem not in kept
    ]
    for path in stale:
        path.unlink()
    return stale


def _joined(piece: list) -> Members:
    names = pa.concat_arrays([found.raw_names for _, found in piece])
    columns = zip(*((tar, found.offsets, found.sizes) for tar, found in piece), strict=True)
    tar, offsets, sizes = (np.concatenate(column) for column in columns)
    return Members(tar, names, offsets, sizes)
