"""Rows joined with the tar index on the hash of (tar, member), part by part: no index need fit in
memory."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from millrace.asr.tars.index import TarIndex, TarRecord
from millrace.asr.tars.paths import real_paths
from millrace.asr.tars.stamp import Stamp
from millrace.common.errors import MillraceError


class Addresses:
    """The addresses of one part's members: a table of key, tar, offset, size, or None."""

    def __init__(self, table: pa.Table | None) -> None:
        none = np.zeros(0, dtype=np.int64)
        names = ("key", "tar", "offset", "size")
        key, *columns = (none if table is None else table[name].to_numpy() for name in names)
        order = np.argsort(key)
        self.key = key[order]
        if (self.key[1:] == self.key[:-1]).any():
            # A member that is twice in its tar: a stable order, so the tar's.
            order = np.lexsort((columns[0], key))
        self.tar, self.offset, self.size = (column[order] for column in columns)

    def find(self, keys: np.ndarray, tars: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """int64 offset and size of every (key, tar); of several members of one name the last in the
        tar.

        Offset -2 if the tar has no such member, -1 if it has no bytes.
        """
        if not len(self.key) or not len(keys):
            return np.full(len(keys), -2), np.full(len(keys), -2)
        at = np.searchsorted(self.key, keys, side="right") - 1
        known = (at >= 0) & (self.key[at] == keys)
        # Two tars' members with one 64-bit hash: step back to the row's own tar. Practically never.
        other = known & (self.tar[at] != tars)
        while other.any():
            at[other] -= 1
            known &= (at >= 0) & (self.key[at] == keys)
            other = known & (self.tar[at] != tars)
        return np.where(known, self.offset[at], -2), np.where(known, self.size[at], -2)


class TarIndices:
    """The indices of partitions of tars as one. Opening them reads their footers only.

    `piece`: members of one piece, at least; a tar is never split over two pieces.
    """

    def __init__(self, paths: Iterable[str | os.PathLike], piece: int = 200_000) -> None:
        self._indices, self.piece = [TarIndex.open(path) for path in paths], piece
        # Number of the index, and the tar's name in it.
        self._place: dict[str, tuple[int, str]] = {}
        for number, index in enumerate(self._indices):
            for tar in index.tars:
                first, _ = self._place.setdefault(os.path.normpath(tar), (number, tar))
                if first != number:
                    problem = (
                        f"two indices hold this tar: {self._indices[first].path} and {index.path}"
                    )
                    raise MillraceError(problem, tar, "Give the indices of one set of partitions")
        # Under its full path too, and the one without links, unless that is the name of one
        # already.
        real = real_paths(self._place)
        for path, place in list(self._place.items()):
            self._place.setdefault(os.path.abspath(path), place)
            self._place.setdefault(real[path], place)

    def _record(self, tar: str) -> tuple[int, TarRecord] | None:
        """The number of the index that knows the tar, and its record there."""
        place = self._place.get(tar) or self._place.get(os.path.abspath(tar))
        place = place or self._place.get(real_paths([tar])[tar])
        return (place[0], self._indices[place[0]].tars[place[1]]) if place else None

    def state(self, tar: str) -> Stamp | str:
        """A tar as it was when it was indexed; or why it has no usable index."""
        place = self._record(tar)
        if place is None:
            return "in none of the tar indices"
        record = place[1]
        if record.failed:
            return f"{record.status}: {record.reason}"
        return Stamp(record.size, record.mtime_ns, record.digest)

    def remark(self, tar: str) -> str:
        """What a person should know of an indexed tar; "" if nothing is odd."""
        place = self._record(tar)
        return f"{place[1].status}: {place[1].reason}" if place and place[1].reason else ""

    def members(self, tars: Sequence[str]) -> Iterator[pa.Table]:
        """All members of `tars`, as `TarIndex.members`, in pieces of whole tars; `tar` numbers
        `tars`."""
        records = ((self._record(tar), number) for number, tar in enumerate(tars))
        places = sorted(
            (at[0], at[1].first_row, at[1].path, number) for at, number in records if at
        )
        piece, rows = [], 0
        for index, _, tar, number in places:
            members = self._indices[index].members(tar)
            piece.append(
                members.append_column("tar", pa.array(np.full(len(members), number, np.int32)))
            )
            rows += len(members)
            if rows >= self.piece:
                yield pa.concat_tables(piece)
                piece, rows = [], 0
        if rows:
            yield pa.concat_tables(piece)


def index_files(paths: Iterable[Path]) -> list[Path]:
    """The files among `paths`, and the *.parquet of the folders among them, sorted."""
    return sorted(
        {file for path in paths for file in (path.glob("*.parquet") if path.is_dir() else [path])}
    )


def sweep(folder: Path, indices: Iterable[Path]) -> list[Path]:
    """Delete the indices and reports of partitions that no longer exist: in `folder`, but not of
    `indices`.

    Only files named as the workflow names them are touched. Returns what was removed.
    """
    stems = {path.stem for path in indices}
    files = sorted(path for path in folder.glob("tars-*") if path.stem not in stems)
    stale = [path for path in files if re.fullmatch(r"tars-\d+\.(parquet|json)", path.name)]
    for path in stale:
        path.unlink()
    return stale
