"""The segments of a country's shards, over all of its partitions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Self

import pyarrow as pa

from millrace.common import cli
from millrace.speech.corpus.splits import SPLITS
from millrace.speech.country import tables
from millrace.speech.country.copies import Copy
from millrace.speech.shards import left_out


class Segments(NamedTuple):
    """The segments of a country's shards, without copies of what is held out."""

    parts: list[tables.PartitionFiles]

    @classmethod
    def of(cls, partitions: list[str], manifest_dir: str, shards_dir: str) -> Self:
        parts = [tables.PartitionFiles(name, manifest_dir, shards_dir) for name in partitions]
        return cls(parts)

    def leave_out(self, copies: list[Copy]) -> None:
        """Take these copies out of the tars, and put back those that are none any more."""
        details = {copy.key: copy.detail for copy in copies}
        for part in self.parts:
            for tar in part.tars():
                has_changed = left_out.settle(tar, details)
                if has_changed:
                    cli.log.info("%s: copies of held-out sound left it, or came back", tar.name)

    def final_rows(self) -> Iterator[dict]:
        """The manifest rows of all partitions, with their final status."""
        for part in self.parts:
            yield from part.final_rows()

    def pieces(self, columns: list[str]) -> Iterator[pa.Table]:
        """These columns, partition by partition."""
        for part in self.parts:
            yield part.shard_rows(columns)

    def shards(self) -> tuple[dict[str, list[str]], int]:
        """The shards of each split, sorted, and the number of all segments."""
        rows = 0
        found: set[tuple[str, str]] = set()
        for piece in self.pieces(["split", "shard"]):
            rows += piece.num_rows
            groups = piece.group_by(["split", "shard"]).aggregate([])
            for row in groups.to_pylist():
                found.add((row["split"], row["shard"]))

        shards: dict[str, list[str]] = {split: [] for split in SPLITS}
        for split, shard in sorted(found):
            shards[split].append(shard)
        return shards, rows
