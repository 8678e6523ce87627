"""A small corpus in shards, as the steps before publishing leave it."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from millrace.speech.columns import INDEX_SCHEMA
from millrace.speech.names import Partition, safe_name
from millrace.speech.shards.build import build
from millrace.speech.shards.index import write_table
from millrace.speech.shards.plan import ShardOptions, plan_partition
from tests.speech.shard_corpus import row, write_recording


def write_corpus(folder: Path, countries: dict[str, tuple[str, ...]], samples: int = 7) -> pa.Table:
    """Write shards/ and index.parquet below `folder`: a shard of `samples` for each split of each
    country.

    The numbers of the first samples are not known or whole; later ones are fractions.
    """
    tables = [INDEX_SCHEMA.empty_table()]
    for number, (country, splits) in enumerate(countries.items()):
        source = write_recording(folder / f"audio/{country}.wav", samples + 1, number)
        for split in splits:
            name = f"{split}-1" if split == "train" else split
            partition = Partition(safe_name(country), name, 0)
            rows = [_row(source, country, partition, number) for number in range(samples)]
            plan = plan_partition(partition, rows, ShardOptions())
            tables.append(build(plan, folder / "shards").index)
    index = pa.concat_tables(tables)
    write_table(folder / "index.parquet", index)
    return index


def _row(source: Path, country: str, partition: Partition, number: int) -> dict:
    fields = {name: f"{country}.{name} {number}" for name in ("key", "video_id", "transcript_id")}
    fields |= {"country": country, "language": "no", "asr_transcript": "", "cer": 0.25}
    fields["human_transcript"] = f"Øl № {number}"
    fields["wer"] = [None, 0.0, 1.0][number] if number < 3 else number / 8
    return row(source, number, number + 0.1, str(partition), **fields)
