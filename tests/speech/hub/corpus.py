"""A small corpus in shards, as the steps before publishing leave it."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pyarrow as pa
import soundfile

from millrace.speech.columns import COMPLETED, SIDECAR_SCHEMA
from millrace.speech.names import Partition, safe_name
from millrace.speech.shards.index import Sidecar, index_of, write_sidecar, write_table
from millrace.speech.shards.plan import safe_key, sample_json
from millrace.speech.shards.tar_writer import TarWriter

RATE = 16000


def write_corpus(folder: Path, countries: dict[str, tuple[str, ...]], samples: int = 7) -> pa.Table:
    """Write shards/ and index.parquet below `folder`: a shard of `samples` for each split of each
    country.

    The numbers of the first samples are not known or whole; later ones are fractions.
    """
    tables = []
    for country, splits in countries.items():
        for split in splits:
            name = f"{split}-1" if split == "train" else split
            partition = Partition(safe_name(country), name, 0)
            tables.append(_write_shard(folder / "shards", country, split, partition, samples))
    index = index_of(tables)
    write_table(folder / "index.parquet", index)
    return index


def _write_shard(
    folder: Path, country: str, split: str, partition: Partition, samples: int
) -> pa.Table:
    shard, rows = partition.shard(0), []
    (folder / shard).parent.mkdir(parents=True, exist_ok=True)
    with TarWriter(folder / shard) as writer:
        for number in range(samples):
            buffer, length = io.BytesIO(), RATE // 10 + number
            soundfile.write(buffer, np.sin(np.arange(length) / 9 + number), RATE, format="FLAC")
            rate = [None, 0.0, 1.0][number] if number < 3 else number / 8
            row = {
                name: f"{country}.{name} {number}" for name in ("key", "video_id", "transcript_id")
            }
            row |= {
                "country": country,
                "language": "no",
                "split": split,
                "start_seconds": 1.0 * number,
            }
            row |= {"subset_id": 1 if split == "train" else None, "end_seconds": number + 0.1}
            row |= {
                "human_transcript": f"Øl № {number}",
                "asr_transcript": "",
                "cer": 0.25,
                "wer": rate,
            }
            row |= {"duration_seconds": length / RATE}
            stem, text = safe_key(row["key"]), sample_json(row, RATE)
            row["offset"] = writer.add(f"{stem}.flac", buffer.getvalue(), hashed=True)
            writer.add(f"{stem}.json", text)
            row |= {"shard": shard, "member": f"{stem}.flac", "size": len(buffer.getvalue())}
            row |= {"samples": length, "sample_rate": RATE, "status": COMPLETED}
            rows.append(row)
    for row in rows:
        row["sha256"] = writer.member_sha256[row["offset"]]
    table = pa.Table.from_pylist(rows, schema=SIDECAR_SCHEMA)
    write_sidecar(folder / shard, Sidecar("digest", writer.size, writer.sha256, table))
    return table
