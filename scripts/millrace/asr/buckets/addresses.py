"""Where in its tar the member of a row lies, out of the tar indices: which of several members with
one name is read, and which indices are refused or deleted."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from millrace.asr.tars.index import TarIndex, TarRecord
from millrace.asr.tars.paths import real_paths
from millrace.asr.tars.stamp import Stamp
from millrace.common import atomic
from millrace.common.errors import MillraceError


def find_members(
    members: pa.Table | None, keys: np.ndarray, tars: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """int64 offset and size of every (key, tar); of several members of one name the last in the
    tar.

    `members`: a table of key, tar, offset and size, or None. Offset -2 if the tar has no such
    member, -1 if it has no bytes.
    """
    if members is None or not len(keys):
        none = np.full(len(keys), -2)
        return none, none

    # A member that is twice in its tar: a stable order, so the tar's.
    order = np.argsort(members["key"].to_numpy(), kind="stable")
    ordered = {name: members[name].to_numpy()[order] for name in members.column_names}
    at = np.searchsorted(ordered["key"], keys, side="right") - 1
    # Of two tars' members with one 64-bit hash only the last is found.
    known = (at >= 0) & (ordered["key"][at] == keys) & (ordered["tar"][at] == tars)
    offset = np.where(known, ordered["offset"][at], -2)
    size = np.where(known, ordered["size"][at], -2)
    return offset, size


class _Known(NamedTuple):
    """Number of the index that knows a tar, and its record there."""

    number: int
    record: TarRecord


class TarIndices:
    """The indices of partitions of tars as one. Opening them reads their footers only.

    `piece`: members of one piece, at least; a tar is never split over two pieces.
    """

    def __init__(self, paths: Iterable[str | os.PathLike], piece: int = 200_000) -> None:
        self.piece = piece
        self._indices = [TarIndex.open(path) for path in paths]
        self._known: dict[str, _Known] = {}  # by their paths without links
        for number, index in enumerate(self._indices):
            places = real_paths(index.tars)
            for tar, record in index.tars.items():
                first = self._known.setdefault(places[tar], _Known(number, record))
                if first.number != number:
                    both = f"{self._indices[first.number].path} and {index.path}"
                    remedy = "Give the indices of one set of partitions"
                    raise MillraceError(f"two indices hold this tar: {both}", tar, remedy)

    def _find(self, tar: str) -> _Known | None:
        return self._known.get(real_paths([tar])[tar])

    def state(self, tar: str) -> Stamp | str:
        """A tar as it was when it was indexed; or why it has no usable index."""
        known = self._find(tar)
        if known is None:
            return "in none of the tar indices"
        record = known.record
        if record.failed:
            return f"{record.status}: {record.reason}"
        return Stamp(record.size, record.mtime_ns, record.digest)

    def remark(self, tar: str) -> str:
        """What a person should know of an indexed tar; "" if nothing is odd."""
        known = self._find(tar)
        if known is None or not known.record.reason:
            return ""
        return f"{known.record.status}: {known.record.reason}"

    def members(self, tars: Sequence[str]) -> Iterator[pa.Table]:
        """All members of `tars`, as `TarIndex.members`, in pieces of whole tars; `tar` numbers
        `tars`."""
        places = []
        for number, tar in enumerate(tars):
            known = self._find(tar)
            if known is not None:
                record = known.record
                places.append((known.number, record.first_row, record.path, number))
        # Each index is read from its beginning to its end.
        places.sort()
        piece: list[pa.Table] = []
        rows = 0
        for index, _, path, number in places:
            members = self._indices[index].members(path)
            numbers = np.full(len(members), number, np.int32)
            piece.append(members.append_column("tar", pa.array(numbers)))
            rows += len(members)
            if rows >= self.piece:
                yield pa.concat_tables(piece)
                piece = []
                rows = 0
        if rows:
            yield pa.concat_tables(piece)


def index_files(paths: Iterable[Path]) -> list[Path]:
    """The files among `paths`, and the *.parquet of the folders among them, sorted."""
    files: set[Path] = set()
    for path in paths:
        if path.is_dir():
            files.update(path.glob("*.parquet"))
        else:
            files.add(path)
    return sorted(files)


def sweep(folder: Path, indices: Iterable[Path]) -> list[Path]:
    """Delete the indices and reports of partitions that no longer exist: in `folder`, but not of
    `indices`.

    Only files named as the workflow names them are touched. Returns what was removed.
    """
    atomic.sweep_folder(folder)
    stems = {path.stem for path in indices}
    stale = []
    for path in sorted(folder.glob("tars-*")):
        is_ours = re.fullmatch(r"tars-\d+\.(parquet|json)", path.name)
        if is_ours and path.stem not in stems:
            path.unlink()
            stale.append(path)
    return stale
