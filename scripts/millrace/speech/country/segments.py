"""The segments of a country's shards, over all of its partitions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Self

import pandas as pd
import pyarrow as pa

from millrace.common import jsonl
from millrace.speech.corpus.splits import SPLITS
from millrace.speech.country import copies, tables


class Segments(NamedTuple):
    """The segments of a country's shards, without those that lie in another split too."""

    parts: list[tables.PartitionFiles]
    repeated: pd.DataFrame  # of copies.find

    @classmethod
    def of(cls, partitions: list[str], manifest_dir: str, shards_dir: str) -> Self:
        parts = [tables.PartitionFiles(name, manifest_dir, shards_dir) for name in partitions]
        repeated = copies.find(lambda columns: (part.shard_rows(columns) for part in parts))
        details = dict(zip(repeated["key"], repeated["detail"], strict=True))
        for part in parts:
            part.copies = details
        return cls(parts, repeated)

    def pieces(self, columns: list[str]) -> Iterator[pa.Table]:
        """These columns, partition by partition."""
        start = 0
        for part in self.parts:
            table = part.shard_rows(columns)
            yield copies.without(table, self.repeated, start)
            start += table.num_rows

    def shards(self) -> tuple[dict[str, list[str]], int]:
        """The shards of each split, sorted, and the number of all segments."""
        rows = 0
        shards: dict[str, set[str]] = {split: set() for split in SPLITS}
        for piece in self.pieces(["split", "shard"]):
            rows += piece.num_rows
            for row in piece.group_by(["split", "shard"]).aggregate([]).to_pylist():
                shards[row["split"]].add(row["shard"])
        return {split: sorted(names) for split, names in shards.items()}, rows


def other_countries(folder: Path, country: str) -> list[str]:
    """The names of the countries that are described beside this one."""
    names = [jsonl.read(path)["country"] for path in sorted(folder.glob("*.json"))]
    return [name for name in names if name != country]
