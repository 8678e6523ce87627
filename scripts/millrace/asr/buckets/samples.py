"""The identity of a sample: a 64-bit hash of its tar and member, the same for any order of the
input."""

from __future__ import annotations

import io
import os
import wave
from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from millrace.common.hashing import hash_strings, mix


def sample_ids(tar_hashes: np.ndarray, members: pa.Array | pa.ChunkedArray) -> np.ndarray:
    """uint64 ids of (tar, member): `tar_hashes` are of the tars' names, members have no ./
    prefix."""
    return mix(hash_strings(members) + mix(tar_hashes))


def portable_names(tars: list[str]) -> list[str]:
    """Tar paths relative to the folder they share: moving that folder changes no identity."""
    absolute = [path for path in tars if path.startswith("/")]
    shared = os.path.commonpath([os.path.dirname(path) for path in absolute]) if absolute else ""
    return [path[len(shared) :].lstrip("/") if path.startswith("/") else path for path in tars]


def header_seconds(tar: str, offset: int) -> float | None:
    """The duration of a FLAC or WAV member at `offset` by its header; None where that does not
    say."""
    try:
        with open(tar, "rb") as file:
            file.seek(offset)
            head = file.read(4096)
        if head.startswith(b"fLaC"):
            facts = int.from_bytes(
                head[18:26], "big"
            )  # 20 bits of rate, 8 of format, 36 of samples
            return (facts & ((1 << 36) - 1)) / (facts >> 44) or None
        with wave.open(io.BytesIO(head)) as sound:
            return sound.getnframes() / sound.getframerate()
    except (OSError, ValueError, EOFError, ZeroDivisionError, wave.Error):
        return None


def resolve_collisions(
    table: pa.Table, tars: Sequence[str], order: np.ndarray, keys: np.ndarray, tied: np.ndarray
) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
    """Order rows of equal keys, at the places `tied` of `order`, independently of the input's
    order.

    Returns the new order, the places of twins (the rows of one (tar, member) after the first, by
    duration, whether a language is given, transcript, language, file and row), and the places of
    each member whose durations or languages differ.
    """
    columns = ["tar_member_name", "duration_s", "transcript", "language", "row"]
    rows = table.select(["tar", *columns]).take(pa.array(order[tied])).to_pylist()
    facts = [
        _Twin(
            key,
            tars[row["tar"]],
            row["tar_member_name"] or "",
            row["duration_s"] or 0.0,
            not row["language"],
            row["transcript"] or "",
            row["language"] or "",
            row["row"],
        )
        for key, row in zip(keys[tied].tolist(), rows, strict=True)
    ]
    ranked = sorted(range(len(facts)), key=facts.__getitem__)
    order = order.copy()
    order[tied] = order[tied][ranked]
    ordered = [facts[at] for at in ranked]
    members = [
        list(places) for _, places in groupby(range(len(ordered)), lambda at: ordered[at][:3])
    ]
    twins = [at for places in members for at in places[1:]]
    differing = [places for places in members if _differ([ordered[at] for at in places])]
    return order, tied[twins], [tied[places] for places in differing]


class _Twin(NamedTuple):
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


def _differ(twins: Sequence[_Twin]) -> bool:
    """Whether rows of one member contradict each other."""
    durations = {twin.duration_s for twin in twins}
    return len(durations) > 1 or not agree_in_language([twin.language for twin in twins])


def agree_in_language(languages: Sequence[str | None]) -> bool:
    """Whether these name one language at most: none contradicts none, and case is no other
    language."""
    return len({language.casefold() for language in languages if language}) < 2
