"""The order of rows inside a bucket, by a hash that the seed changes; which of several rows of one
member stays, and when such rows contradict each other."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from millrace.common import hashing


def row_keys(ids: np.ndarray, seed_key: np.uint64) -> np.ndarray:
    """uint64 keys of rows: their sample ids mixed with the seed, still one key per id."""
    return hashing.mix(ids ^ seed_key)


class SortedRows(NamedTuple):
    """The order of a table's rows: place p is row `order[p]` and has `keys[p]`.

    `twins` are the places of rows of one (tar, member) after its first; `contradicting` those of
    all rows of members whose durations or languages differ.
    """

    order: np.ndarray
    keys: np.ndarray
    twins: np.ndarray
    contradicting: np.ndarray


def sort_rows(table: pa.Table, tars: Sequence[str], seed_key: np.uint64) -> SortedRows:
    """Sort by the rows' keys; rows of one key independently of the order that they come in."""
    keys = row_keys(table.column("sample_id").to_numpy(), seed_key)
    order = np.argsort(keys)
    keys = keys[order]
    tied = np.flatnonzero(keys[1:] == keys[:-1])
    if not len(tied):
        return SortedRows(order, keys, tied, tied)
    tied = np.union1d(tied, tied + 1)

    rows = _tied_rows(table, tars, order[tied], keys[tied])
    ranked = sorted(range(len(rows)), key=rows.__getitem__)
    order[tied] = order[tied][ranked]
    ordered = [rows[at] for at in ranked]
    twins: list[int] = []
    differing: list[int] = []
    for _, member in groupby(range(len(ordered)), lambda at: ordered[at][:3]):
        places = list(member)
        twins += places[1:]
        if _differ([ordered[at] for at in places]):
            differing += places
    return SortedRows(order, keys, tied[twins], tied[differing])


class _TiedRow(NamedTuple):
    """A row whose key another row has as well; its fields in the order that decides which row is
    kept."""

    key: int
    tar: str
    member: str
    duration_s: float
    has_no_language: bool
    transcript: str
    language: str
    row: int


def _tied_rows(
    table: pa.Table, tars: Sequence[str], numbers: np.ndarray, keys: np.ndarray
) -> list[_TiedRow]:
    columns = ["tar", "tar_member_name", "duration_s", "transcript", "language", "row"]
    rows = table.select(columns).take(pa.array(numbers)).to_pylist()
    return [
        _TiedRow(
            key,
            tars[row["tar"]],
            row["tar_member_name"] or "",
            row["duration_s"] or 0.0,
            not row["language"],
            row["transcript"] or "",
            row["language"] or "",
            row["row"],
        )
        for key, row in zip(keys.tolist(), rows, strict=True)
    ]


def _differ(rows: Sequence[_TiedRow]) -> bool:
    """Whether rows of one member contradict each other: no language contradicts none, and case is
    no other language."""
    durations = {row.duration_s for row in rows}
    languages = {row.language.casefold() for row in rows if row.language}
    return len(durations) > 1 or len(languages) > 1
