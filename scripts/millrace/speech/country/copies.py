"""Segments whose bytes lie in two splits: a recording that is a cut copy of another under another
name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from millrace.speech.corpus.splits import SPLITS

_NAMES = [
    "country",
    "video_id",
    "key",
    "split",
    "sha256",
]


Pieces = Callable[[list[str]], Iterable[pa.Table]]


class _Heads(NamedTuple):
    """A piece of an index: the first 8 bytes of each digest, and the rank of each split."""

    piece: pa.Table
    digests: np.ndarray
    ranks: np.ndarray


def find(pieces: Pieces) -> pd.DataFrame:
    """The rows of an index to leave out: in train what lies in validation or test too, in
    validation what lies in test too, by SHA-256. Copies within a split are no leak.

    `pieces` gives the columns it is asked for, in the same order each time. Columns of the result:
    `row` (its number in the index), key, recording (country/video_id), split; the last three with
    of_ before, of the segment that stays; and `detail`, for people. In memory: 8 bytes of the
    digests of validation, test and all that match.
    """
    table = _rows_of(pieces, _shared_digests(pieces))
    table["recording"] = table["country"] + "/" + table["video_id"]
    table = table.sort_values(["rank", "row"], ascending=[False, True])
    stays = table.drop_duplicates("sha256").set_index("sha256")
    stays = stays[["recording", "key", "split", "rank"]]
    table = table.join(stays.add_prefix("of_"), on="sha256")
    original = table["of_key"] + " of " + table["of_recording"]
    table["detail"] = "the same audio as " + original + ", which is in " + table["of_split"]
    is_copy = table["rank"] < table["of_rank"]
    return table[is_copy].sort_values("row", ignore_index=True)


def _heads(pieces: Pieces, columns: list[str]) -> Iterator[_Heads]:
    for piece in pieces(columns):
        digits = "".join(pc.utf8_slice_codeunits(piece["sha256"], 0, 16).to_pylist())
        digests = np.frombuffer(bytes.fromhex(digits), np.uint64)
        ranks = pc.index_in(piece["split"], pa.array(SPLITS)).to_numpy().astype(np.int8)
        yield _Heads(piece, digests, ranks)


def _shared_digests(pieces: Pieces) -> np.ndarray:
    """Sorted first bytes of the digests that lie in a split and in one above it."""
    # What train shares with validation or test, and validation with test.
    above: dict[int, list[np.ndarray]] = {0: [], 1: []}
    for heads in _heads(pieces, ["sha256", "split"]):
        for rank, parts in above.items():
            parts.append(heads.digests[heads.ranks > rank])
    higher = {rank: _sorted(parts) for rank, parts in above.items()}

    matches: list[np.ndarray] = []
    for heads in _heads(pieces, ["sha256", "split"]):
        for rank, known in higher.items():
            digests = heads.digests[heads.ranks == rank]
            matches.append(digests[_is_in(digests, known)])
    return _sorted(matches)


def _sorted(parts: list[np.ndarray]) -> np.ndarray:
    return np.unique(np.concatenate([np.zeros(0, np.uint64), *parts]))


def _rows_of(pieces: Pieces, shared: np.ndarray) -> pd.DataFrame:
    """The rows of an index whose digests begin with one of `shared`, with `row` and `rank`."""
    chosen = [pd.DataFrame(columns=[*_NAMES, "row", "rank"])]
    start = 0
    if len(shared):
        for heads in _heads(pieces, _NAMES):
            at = np.flatnonzero(_is_in(heads.digests, shared))
            rows = heads.piece.take(pa.array(at)).to_pandas()
            chosen.append(rows.assign(row=start + at, rank=heads.ranks[at]))
            start += heads.piece.num_rows
    return pd.concat(chosen).astype({"row": np.int64, "rank": np.int8})


def without(table: pa.Table, copies: pd.DataFrame, start: int = 0) -> pa.Table:
    """The piece of an index that begins with row `start`, without the copies."""
    return table.filter(~_is_in(np.arange(start, start + table.num_rows), copies["row"].to_numpy()))


def _is_in(values: np.ndarray, known: np.ndarray) -> np.ndarray:
    """np.isin for sorted `known`, which is searched, not sorted again for every piece."""
    if not len(known):
        return np.zeros(len(values), bool)
    at = np.searchsorted(known, values)
    return known.take(at, mode="clip") == values


def pairs(copies: pd.DataFrame) -> list[dict]:
    """The pairs of recordings behind copies, each with its number of `segments`: JSON-ready, for
    ledgers."""
    counts = copies.groupby(["recording", "split", "of_recording", "of_split"]).size()
    return counts.reset_index(name="segments").to_dict("records")


def line(pair: dict) -> str:
    """A pair as people read it."""
    copy = f"{pair['recording']} ({pair['split']})"
    original = f"{pair['of_recording']} ({pair['of_split']})"
    repeats = f"{copy} repeats {pair['segments']} segments of {original}"
    return f"{repeats}: they are left out of {pair['split']}"
