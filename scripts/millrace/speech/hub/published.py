"""What is published: the shards, and a list of them with their path in the repository, SHA-256,
size, samples and seconds."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq

from millrace.common import jsonl
from millrace.common.errors import Damaged, MillraceError, own_file
from millrace.common.hub.publish import CARD, DATA, File
from millrace.speech.corpus.splits import SPLITS
from millrace.speech.shards.index import read_sidecar

NAME = "manifest.jsonl"
_PUBLISHED = re.compile(
    DATA
    + r"(?P<country>[^/.]+)/(?P<split>[a-z]+)/"
    + r"(?P=country)-(?P<folder>(?P=split)(-\d+)?)-\d{5,}\.tar"
)
_BY = ["shard", "country", "language", "split", "sample_rate", "format"]


def shards(index: str | os.PathLike) -> pd.DataFrame:
    """A row for every shard of the merged index, in the order of countries, splits and shards:
    columns _BY, `samples` and `seconds`."""
    columns = [*_BY[:-1], "member", "duration_seconds"]
    tables = []
    with own_file(index), pq.ParquetFile(index) as file:
        for number in range(file.num_row_groups):
            rows = file.read_row_group(number, columns).to_pandas()
            rows["format"] = [name.rpartition(".")[2] for name in rows.pop("member")]
            sums = rows.groupby(_BY).agg(
                samples=("duration_seconds", "size"),
                seconds=("duration_seconds", "sum"),
            )
            tables.append(sums)
    if not sum(map(len, tables)):
        remedy = "There is nothing to publish yet"
        raise MillraceError("no segment is in a shard", str(index), remedy)
    table = pd.concat(tables).groupby(level=_BY).sum().reset_index()
    order = table["split"].map({split: place for place, split in enumerate(SPLITS)})
    return table.assign(order=order).sort_values(["country", "order", "shard"], ignore_index=True)


def published_path(shard: str, split: str) -> str:
    """Where a shard of the index, `<country>/<split and subset>/<name>`, goes."""
    country, _, name = shard.split("/")
    return f"{DATA}{country}/{split}/{name}"


def rows(table: pd.DataFrame, shards_dir: str | os.PathLike) -> Iterator[dict]:
    """The manifest's rows; digests are those that stand beside the tars, which are not read."""
    for row in table.itertuples():
        tar = Path(shards_dir) / row.shard
        sidecar = read_sidecar(tar)
        if not sidecar or not tar.is_file() or tar.stat().st_size != sidecar.tar_size:
            remedy = "Run `snakemake speech_shards --forcerun speech_create_shards`"
            raise MillraceError("the shard is missing, or not as it was written", str(tar), remedy)
        yield {
            "path": published_path(row.shard, row.split),
            "sha256": sidecar.tar_sha256,
            "size": sidecar.tar_size,
            "samples": int(row.samples),
            "seconds": round(float(row.seconds), 6),
        }


def files(
    manifest: str | os.PathLike, card: str | os.PathLike, shards_dir: str | os.PathLike
) -> list[File]:
    """What is published: manifest, card, and the shards that the manifest names, in
    `shards_dir`."""
    result = [
        File.of(NAME, Path(manifest).read_bytes()),
        File.of(CARD, Path(card).read_bytes()),
    ]
    for number, row, _ in jsonl.lines(manifest):
        if not isinstance(row, dict):
            raise Damaged(manifest, f"line {number} names no shard")
        match = _PUBLISHED.fullmatch(str(row.get("path")))
        if match is None:
            raise Damaged(manifest, f"line {number} names no shard")
        name = Path(match[0]).name
        source = Path(shards_dir, match["country"], match["folder"], name)
        result.append(File(match[0], row["size"], row["sha256"], source))
    return result
