"""Segments whose bytes lie in two splits: a recording that is a cut copy of another under another
name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from millrace.speech.corpus.splits import SPLITS

_NAMES = ["country", "video_id", "key", "split", "sha256"]


def find(pieces: Callable[[list[str]], Iterable[pa.Table]]) -> pd.DataFrame:
    """The rows of an index to leave out: in train what lies in validation or test too, in
    validation what lies in test too, by SHA-256. Copies within a split are no leak.

    `pieces` gives the columns it is asked for, in the same order each time. Columns of the result:
    `row` (its number in the index), key, recording (country/video_id), split; the last three with
    of_ before, of the segment that stays; and `detail`, for people. In memory: 8 bytes of the
    digests of validation, test and all that match.
    """

    def heads(columns: list[str]) -> Iterator[tuple[pa.Table, np.ndarray, np.ndarray]]:
        """Pieces, with the first 8 bytes of their digests and the ranks of their splits."""
        for piece in pieces(columns):
            digits = "".join(pc.utf8_slice_codeunits(piece["sha256"], 0, 16).to_pylist())
            rank = pc.index_in(piece["split"], pa.array(SPLITS)).to_numpy().astype(np.int8)
            yield piece, np.frombuffer(bytes.fromhex(digits), np.uint64), rank

    # By the splits above its own: what train shares with validation or test, validation with test.
    above = {0: [np.zeros(0, np.uint64)], 1: [np.zeros(0, np.uint64)]}
    for _, head, rank in heads(["sha256", "split"]):
        for place, parts in above.items():
            parts.append(head[rank > place])
    sets = {place: np.unique(np.concatenate(parts)) for place, parts in above.items()}
    matches = [np.zeros(0, np.uint64)]
    for _, head, rank in heads(["sha256", "split"]):
        for place, others in sets.items():
            mine = head[rank == place]
            matches.append(mine[_is_in(mine, others)])
    shared = np.unique(np.concatenate(matches))

    chosen, start = [pd.DataFrame(columns=[*_NAMES, "row", "rank"])], 0
    for piece, head, rank in heads(_NAMES) if len(shared) else ():
        at = np.flatnonzero(_is_in(head, shared))
        chosen.append(piece.take(pa.array(at)).to_pandas().assign(row=start + at, rank=rank[at]))
        start += piece.num_rows
    table = pd.concat(chosen).astype({"row": np.int64, "rank": np.int8})
    table["recording"] = table["country"] + "/" + table["video_id"]
    table = table.sort_values(["rank", "row"], ascending=[False, True])
    stays = table.drop_duplicates("sha256").set_index("sha256")[
        ["recording", "key", "split", "rank"]
    ]
    table = table.join(stays.add_prefix("of_"), on="sha256")
    same = "the same audio as " + table["of_key"] + " of " + table["of_recording"]
    table["detail"] = same + ", which is in " + table["of_split"]
    return table[table["rank"] < table["of_rank"]].sort_values("row", ignore_index=True)


def without(table: pa.Table, copies: pd.DataFrame, start: int = 0) -> pa.Table:
    """The piece of an index that begins with row `start`, without the copies."""
    return table.filter(~_is_in(np.arange(start, start + table.num_rows), copies["row"].to_numpy()))


def _is_in(values: np.ndarray, known: np.ndarray) -> np.ndarray:
    """np.isin for sorted `known`, which is searched, not sorted again for every piece."""
    at = np.searchsorted(known, values)
    return known.take(at, mode="clip") == values if len(known) else np.zeros(len(values), bool)


def pairs(copies: pd.DataFrame) -> list[dict]:
    """The pairs of recordings behind copies, each with its number of `segments`: JSON-ready, for
    ledgers."""
    counts = copies.groupby(["recording", "split", "of_recording", "of_split"]).size()
    return counts.reset_index(name="segments").to_dict("records")


def line(pair: dict) -> str:
    """A pair as people read it."""
    copy, original = (
        f"{pair['recording']} ({pair['split']})",
        f"{pair['of_recording']} ({pair['of_split']})",
    )
    return f"{copy} repeats {pair['segments']} segments of {original}: they are left out of {pair['split']}"
