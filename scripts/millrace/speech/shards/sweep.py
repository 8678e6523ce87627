"""Removing what partitions that are no more have left behind."""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection
from pathlib import Path

from millrace.speech.names import Partition, ShardFile


def sweep_country(
    shards_dir: Path, manifest_dir: Path, country: str, partitions: Collection[str]
) -> list[Path]:
    """Remove shards, their sidecars and the tables of this country's partitions that are not in `partitions`.

    `country` is the name as it stands in paths. Only files named as Millrace names them are touched.
    """
    removed: list[Path] = []
    for folder in sorted((shards_dir / country).glob("*")):
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            found = ShardFile.parse(path.name)
            if found and _is_gone(found.partition, country, partitions):
                path.unlink()
                removed.append(path)
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
    for root in (shards_dir / "partitions", manifest_dir / "partitions"):
        for entry in sorted(os.scandir(root), key=lambda entry: entry.name) if root.is_dir() else ():
            partition = Partition.parse(entry.name)
            if partition and _is_gone(partition, country, partitions):
                shutil.rmtree(entry.path)
                removed.append(Path(entry.path))
    return removed


def _is_gone(partition: Partition, country: str, partitions: Collection[str]) -> bool:
    # The workflow's train always has subsets: a train without one was made by hand.
    return partition.country == country and partition.folder != "train" and str(partition) not in partitions
