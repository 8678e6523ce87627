"""The shards of a country over all of its partitions: copies leave them or come back, and each
split lists its tars."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from millrace.common import cli
from millrace.speech.corpus.splits import SPLITS
from millrace.speech.country.copies import Copy
from millrace.speech.country.tables import PartitionFiles
from millrace.speech.shards import left_out


def leave_out(parts: Iterable[PartitionFiles], copies: Iterable[Copy]) -> None:
    """Take these copies out of the tars, and put back those that are none any more."""
    details = {copy.key: copy.detail for copy in copies}
    for part in parts:
        for tar in part.tars():
            if left_out.settle(tar, details):
                cli.log.info("%s: copies of held-out sound left it, or came back", tar.name)


def shards_of(parts: Sequence[PartitionFiles]) -> tuple[dict[str, list[str]], int]:
    """The shards of each split, sorted, and the number of all segments."""
    rows = 0
    found: set[tuple[str, str]] = set()
    for part in parts:
        piece = part.shard_rows(["split", "shard"])
        rows += piece.num_rows
        groups = piece.group_by(["split", "shard"]).aggregate([])
        for row in groups.to_pylist():
            found.add((row["split"], row["shard"]))

    shards: dict[str, list[str]] = {split: [] for split in SPLITS}
    for split, shard in sorted(found):
        shards[split].append(shard)
    return shards, rows
