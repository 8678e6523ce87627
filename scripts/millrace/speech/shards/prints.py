"""What is known of the sound of a partition's segments: by it copies in other splits are found.

A row of `prints.parquet` is a segment that is cut, in the tar or left out of it. It has the SHA-256
of the audio and, where copies are found by their sound, the words of its fingerprint.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa

from millrace.common.errors import Damaged
from millrace.common.fingerprints.scale import SEARCHED_STEPS
from millrace.common.leaks.leakage import BY_BYTES, NOT_AT_ALL
from millrace.speech.columns import FINGERPRINT
from millrace.speech.shards.index import read_sidecar, write_table

SCHEMA = pa.schema(
    [
        ("key", pa.string()),
        ("country", pa.string()),
        ("video_id", pa.string()),
        ("split", pa.string()),
        ("start_seconds", pa.float64()),
        ("sha256", pa.string()),
        FINGERPRINT,
    ]
)


def steps(split: str) -> int:
    """How many steps apart the words of a segment stand: train is searched for copies of the
    others, which are few."""
    return SEARCHED_STEPS if split == "train" else 1


def write(path: Path, tars: Iterable[Path], copies: str) -> None:
    """Write the prints of the segments of these tars; `copies` is one of COPIES."""
    rows: list[dict] = []
    for tar in tars if copies != NOT_AT_ALL else ():
        sidecar = read_sidecar(tar)
        if sidecar is None:
            raise Damaged(tar, "its sidecar is missing or cannot be read")
        known = sidecar.cut()
        if copies == BY_BYTES:
            rows += [row | {"words": b""} for row in known]
        else:
            rows += known
    chosen = [{name: row[name] for name in SCHEMA.names} for row in rows]
    write_table(path, pa.Table.from_pylist(chosen, schema=SCHEMA))
