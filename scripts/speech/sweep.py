"""Removing what partitions that are no more have left behind."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Collection
from pathlib import Path

from scripts.speech.sources import SHARD_NUMBERS


def sweep_country(shards_dir: Path, manifest_dir: Path, country: str, partitions: Collection[str]) -> list[Path]:
    """Remove shards, their sidecars and the tables of this country's partitions that are not in `partitions`.

    `country` is the name as it stands in paths. Only files named as Millrace names them are touched.
    """
    removed: list[Path] = []
    pattern = re.compile(rf"({re.escape(country)}-(?:train-\d+|validation|test))-(\d{{5,}})")
    for folder in sorted((shards_dir / country).glob("*")):
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            if match := pattern.match(path.name.lstrip(".")):
                first = int(match[2]) // SHARD_NUMBERS * SHARD_NUMBERS
                if f"{match[1]}-{first:05d}" not in partitions:
                    path.unlink()
                    removed.append(path)
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
    for root in (shards_dir / "partitions", manifest_dir / "partitions"):
        for entry in sorted(os.scandir(root), key=lambda entry: entry.name) if root.is_dir() else ():
            if pattern.fullmatch(entry.name) and entry.name not in partitions:
                shutil.rmtree(entry.path)
                removed.append(Path(entry.path))
    return removed
