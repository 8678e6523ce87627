"""The worst batch a bucket can give: its longest audio with its longest transcripts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from millrace.asr.buckets.config import BucketConfig
from millrace.common.errors import MillraceError

LONGEST = ("longest_seconds", "longest_characters")
_BUILD = "Build the buckets: snakemake asr_data"


@dataclass(frozen=True)
class WorstCase:
    """A bucket by length. `audio_rows` and `text_rows` are its longest first; they count over all
    buckets."""

    bucket: str
    number: int
    rows: int
    longest_seconds: float
    shortest_seconds: float
    longest_characters: int
    audio_rows: list[int]
    text_rows: list[int]


def bucket_rows(config: BucketConfig) -> dict[str, int]:
    """Rows of every bucket, in their order. Raises MillraceError."""
    rows = {}
    try:
        for name, path in zip(config.ids, config.paths, strict=True):
            rows[name] = pq.ParquetFile(path).metadata.num_rows
    except (OSError, pa.ArrowException) as error:
        raise MillraceError(f"the bucket cannot be read ({error})", str(path), _BUILD) from None
    return rows


def find(bucket_config: Path, bucket: str, max_rows: int) -> WorstCase | None:
    """The longest rows of `bucket`, at most `max_rows` of each kind; None if it has no rows.

    Raises MillraceError for an unknown bucket.
    """
    config = BucketConfig.read(bucket_config)
    rows = bucket_rows(config)
    if bucket not in rows:
        remedy = f"Choose one of {', '.join(rows)}"
        raise MillraceError(f"there is no bucket {bucket!r}", str(bucket_config), remedy)
    if not rows[bucket]:
        return None
    number = list(rows).index(bucket)
    first = sum(list(rows.values())[:number])
    path = config.paths[number]

    # Batch by batch: transcripts of a whole bucket may not fit into memory, their lengths do.
    lengths: list[tuple[np.ndarray, np.ndarray]] = []
    try:
        parquet = pq.ParquetFile(path)
        texts = ["transcript"]
        if "prompt" in parquet.schema_arrow.names:
            texts.append("prompt")
        for part in parquet.iter_batches(columns=["duration_s", *texts]):
            counts = (pc.utf8_length(part[name].cast(pa.large_string())) for name in texts)
            characters = sum(pc.fill_null(count, 0).to_numpy() for count in counts)
            lengths.append((part["duration_s"].to_numpy(zero_copy_only=False), characters))
    except (OSError, KeyError, pa.ArrowException) as error:
        raise MillraceError(f"it cannot be read ({error})", str(path), _BUILD) from None
    seconds, characters = map(np.concatenate, zip(*lengths, strict=True))
    # Equally long rows keep their order.
    longest = np.argsort(-seconds, kind="stable")[:max_rows]
    wordiest = np.argsort(-characters, kind="stable")[:max_rows]
    return WorstCase(
        bucket=bucket,
        number=number,
        rows=len(seconds),
        longest_seconds=round(float(seconds.max()), 6),
        shortest_seconds=round(float(seconds.min()), 6),
        longest_characters=int(characters.max()),
        audio_rows=(first + longest).tolist(),
        text_rows=(first + wordiest).tolist(),
    )
