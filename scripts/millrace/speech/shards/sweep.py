"""Delete the files of partitions that no longer exist."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Collection
from pathlib import Path

from millrace.speech.corpus.splits import SPLITS
from millrace.speech.names import Partition, ShardFile


def sweep_gone(shards_dir: Path, manifest_dir: Path, country: str) -> list[Path]:
    """Delete all that the steps made of a country that is no more, by the very names that they
    give."""
    deleted = sweep_country(shards_dir, manifest_dir, country, ())
    tables = ["manifest.csv", "index.parquet", "rejects.csv", "ledger.json"]
    tables += [f"{split}_shards.txt" for split in SPLITS]
    files = [shards_dir / f"{country}_{name}" for name in tables]
    files += [manifest_dir / f"{country}_{name}" for name in ("manifest.csv", "splits.csv")]
    for path in filter(Path.is_file, files):
        path.unlink()
        deleted.append(path)
    with contextlib.suppress(OSError):  # a user's own file lies there, or the folder is gone
        (shards_dir / country).rmdir()
    return deleted


def sweep_country(
    shards_dir: Path, manifest_dir: Path, country: str, partitions: Collection
) -> list[Path]:
    """Delete the shards, sidecars and tables of this country's partitions that are not in
    `partitions` (ids).

    `country` is the name as it stands in paths. Only files named as Millrace names them are
    deleted.
    """

    def is_gone(partition: Partition) -> bool:
        # The workflow's train always has subsets: a train without one was made by hand.
        mine = partition.country == country and partition.folder != "train"
        return mine and str(partition) not in partitions

    deleted: list[Path] = []
    for folder in sorted((shards_dir / country).glob("*")):
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            shard = ShardFile.parse(path.name)
            if shard and is_gone(shard.partition):
                path.unlink()
                deleted.append(path)
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
    for root in (shards_dir / "partitions", manifest_dir / "partitions"):
        for path in sorted(root.iterdir()) if root.is_dir() else ():
            partition = Partition.parse(path.name)
            if partition and is_gone(partition):
                shutil.rmtree(path)
                deleted.append(path)
    return deleted
