"""The identity of a sample: a 64-bit hash of its tar and member, the same everywhere and for any input
order."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from millrace.common.hashing import hash_strings, mix


def sample_ids(tar_hashes: np.ndarray, members: pa.Array | pa.ChunkedArray) -> np.ndarray:
    """uint64 ids of (tar, member): `tar_hashes` from `hash_strings` of the tars' names, members without a ./
    prefix."""
    return mix(hash_strings(members) + mix(tar_hashes))


def portable_names(tars: list[str]) -> list[str]:
    """Tar paths relative to the folder they share: moving that folder changes no identity."""
    absolute = [path for path in tars if path.startswith("/")]
    shared = os.path.commonpath([os.path.dirname(path) for path in absolute]) if absolute else ""
    return [path[len(shared) :].lstrip("/") if path.startswith("/") else path for path in tars]


def untangled(
    table: pa.Table, tars: Sequence[str], order: np.ndarray, keys: np.ndarray, tied: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Bring rows of equal keys into an order that does not depend on the input's; return it and the places of
    twins.

    Twins are the rows of one (tar, member) after the first, by duration, transcript, language, file and row.
    """
    rows = table.take(pa.array(order[tied])).to_pylist()
    facts = [
        (
            key,
            tars[row["tar"]],
            row["tar_member_name"],
            row["duration_s"],
            row["transcript"],
            row["language"] or "",
            row["row"],
        )
        for key, row in zip(keys[tied].tolist(), rows, strict=True)
    ]
    ranked = sorted(range(len(facts)), key=facts.__getitem__)
    order = order.copy()
    order[tied] = order[tied][ranked]
    same = [at for at in range(1, len(ranked)) if facts[ranked[at]][:3] == facts[ranked[at - 1]][:3]]
    return order, tied[same]
