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

_BUILD = "Build the buckets: snakemake asr_data"


@dataclass(frozen=True)
class WorstCase:
    """A bucket by length. `audio_rows`, `text_rows`: numbers of the rows with the longest audio and with the
    longest transcripts, falling; numbers count over all buckets, as in RowTable."""

    bucket: str
    number: int
    rows: int
    longest_seconds: float
    shortest_seconds: float
    longest_characters: int
    audio_rows: list[int]
    text_rows: list[int]


def bucket_rows(bucket_config: Path) -> dict[str, int]:
    """Rows of every bucket, in their order. Raises MillraceError."""
    config, rows = BucketConfig.read(bucket_config), {}
    try:
        for name, path in zip(config.ids, config.paths, strict=True):
            rows[name] = pq.ParquetFile(path).metadata.num_rows
    except (OSError, pa.ArrowException) as error:
        raise MillraceError(f"the bucket cannot be read ({error})", str(path), _BUILD) from None
    return rows


def find(bucket_config: Path, bucket: str, max_rows: int) -> WorstCase | None:
    """The longest rows of `bucket`, at most `max_rows` of each kind; None if it has no rows. Raises
    MillraceError for an unknown bucket."""
    rows = bucket_rows(bucket_config)
    names = list(rows)
    if bucket not in rows:
        remedy = f"Choose one of {', '.join(names)}"
        raise MillraceError(f"there is no bucket {bucket!r}", str(bucket_config), remedy)
    if not rows[bucket]:
        return None
    number = names.index(bucket)
    path = BucketConfig.read(bucket_config).paths[number]
    try:
        seconds, characters = _lengths(path)
    except (OSError, KeyError, pa.ArrowException) as error:
        raise MillraceError(f"it cannot be read ({error})", str(path), _BUILD) from None
    first = sum(rows[name] for name in names[:number])
    return WorstCase(
        bucket=bucket,
        number=number,
        rows=len(seconds),
        longest_seconds=round(float(seconds.max()), 6),
        shortest_seconds=round(float(seconds.min()), 6),
        longest_characters=int(characters.max()),
        # Equally long rows keep their order.
        audio_rows=(first + np.argsort(-seconds, kind="stable")[:max_rows]).tolist(),
        text_rows=(first + np.argsort(-characters, kind="stable")[:max_rows]).tolist(),
    )


def _lengths(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Seconds and characters of every row."""
    seconds, characters = [], []
    parquet = pq.ParquetFile(path)
    for group in range(parquet.num_row_groups):
        table = parquet.read_row_group(group, columns=["duration_s", "transcript"])
        seconds.append(table.column("duration_s").to_numpy())
        lengths = pc.fill_null(pc.utf8_length(table.column("transcript").cast(pa.large_string())), 0)
        characters.append(lengths.to_numpy().astype(np.int64))
    return np.concatenate(seconds), np.concatenate(characters)
