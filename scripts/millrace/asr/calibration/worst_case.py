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
    """Rows of a bucket by length. `audio_rows`, `text_rows`: numbers of the rows with the longest audio and
    the longest transcripts, falling, `most` of each at most; numbers count over all buckets, as in
    RowTable."""

    bucket: str
    number: int
    rows: int
    longest_seconds: float
    shortest_seconds: float
    longest_characters: int
    audio_rows: list[int]
    text_rows: list[int]


def empty_buckets(bucket_config: Path) -> set[str]:
    """The buckets without rows. Raises MillraceError."""
    config = BucketConfig.read(bucket_config)
    try:
        pairs = zip(config.ids, config.paths, strict=True)
        return {name for name, path in pairs if not pq.ParquetFile(path).metadata.num_rows}
    except (OSError, pa.ArrowException) as error:
        raise MillraceError(f"a bucket cannot be read ({error})", str(bucket_config), _BUILD) from None


def find(bucket_config: Path, bucket: str, most: int) -> WorstCase:
    """The longest rows of `bucket`. Raises MillraceError for an unknown or an empty bucket."""
    config = BucketConfig.read(bucket_config)
    names, paths = config.ids, config.paths
    if bucket not in names:
        raise MillraceError(
            f"there is no bucket {bucket!r}", str(bucket_config), f"Choose one of {', '.join(names)}"
        )
    number = names.index(bucket)
    try:
        first = sum(pq.ParquetFile(path).metadata.num_rows for path in paths[:number])
        seconds, characters = _lengths(paths[number])
    except (OSError, KeyError, pa.ArrowException) as error:
        raise MillraceError(f"it cannot be read ({error})", str(paths[number]), _BUILD) from None
    if not len(seconds):
        raise MillraceError("this bucket has no rows", str(paths[number]), "Leave it out")
    return WorstCase(
        bucket=bucket,
        number=number,
        rows=len(seconds),
        longest_seconds=round(float(seconds.max()), 6),
        shortest_seconds=round(float(seconds.min()), 6),
        longest_characters=int(characters.max()),
        audio_rows=(first + _longest(seconds, most)).tolist(),
        text_rows=(first + _longest(characters, most)).tolist(),
    )


def _lengths(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Seconds and characters of every row."""
    seconds, characters = [np.zeros(0)], [np.zeros(0, np.int64)]
    parquet = pq.ParquetFile(path)
    for group in range(parquet.num_row_groups):
        table = parquet.read_row_group(group, columns=["duration_s", "transcript"])
        seconds.append(table.column("duration_s").to_numpy())
        lengths = pc.fill_null(pc.utf8_length(table.column("transcript").cast(pa.large_string())), 0)
        characters.append(lengths.to_numpy().astype(np.int64))
    return np.concatenate(seconds), np.concatenate(characters)


def _longest(lengths: np.ndarray, most: int) -> np.ndarray:
    """Numbers of the `most` longest, falling; equal ones in their order."""
    return np.argsort(-lengths, kind="stable")[:most]
