"""Rows joined with the tar index on the hash of (tar, member), part by part, so that no index has to fit in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa

from scripts.asr import identity
from scripts.asr.row_spill import RowSpill

_COLUMNS = ("key", "tar", "offset", "size")


@dataclass(frozen=True)
class Members:
    """Members of tars: `tar` (int32, number in the list of tars asked for), name, offset and size in bytes."""

    tar: np.ndarray
    names: pa.Array
    offsets: np.ndarray
    sizes: np.ndarray


class MemberIndex(Protocol):
    """What the bucket build needs of a tar index."""

    def state(self, tar: str) -> tuple[int, int] | str:
        """(size in bytes, mtime_ns) of a tar when it was indexed; or the reason why it has no usable index."""

    def remark(self, tar: str) -> str:
        """What a person should know of an indexed tar, such as where it is damaged; "" where nothing is odd."""

    def members(self, tars: Sequence[str]) -> Iterator[Members]:
        """All members of `tars`, in pieces of whole tars and of bounded size, each tar's in its order.

        `tar` numbers `tars`; names with or without a ./ prefix; offset -1 for what has no bytes (a directory).
        """


def spill_members(
    index: MemberIndex,
    tars: Sequence[str],
    numbers: np.ndarray,
    tar_hashes: np.ndarray,
    seed_key: np.uint64,
    spill: RowSpill,
) -> None:
    """Part the members' addresses by the same key as the rows. `numbers`: the build's number of each of `tars`."""
    for piece in index.members(tars):
        tar = numbers[piece.tar]
        keys = row_keys(identity.sample_ids(tar_hashes[tar], identity.bare_names(piece.names)), seed_key)
        spill.add(pa.table({"key": keys, "tar": tar, "offset": piece.offsets, "size": piece.sizes}), keys)


def row_keys(ids: np.ndarray, seed_key: np.uint64) -> np.ndarray:
    """The order of rows inside a bucket: ids mixed with the seed, still one key per id."""
    return identity.mix(ids ^ seed_key)


class Addresses:
    """The addresses of one part's members."""

    def __init__(self, table: pa.Table | None) -> None:
        if table is None:
            table = pa.table({name: pa.array([], pa.uint64() if name == "key" else pa.int64()) for name in _COLUMNS})
        columns = {name: table.column(name).to_numpy() for name in table.column_names}
        order = np.argsort(columns["key"])
        self.key = columns["key"][order]
        if (self.key[1:] == self.key[:-1]).any():  # a member twice in its tar: stable, so in the order of the tar
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
