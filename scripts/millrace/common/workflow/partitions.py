"""Partitions, bounded groups of source items: which one an item comes into, for ever, when a source
file counts as unchanged, and that equal partition files are not written again.

A partition file holds all that its job needs to know of its sources, and is rewritten only when
that changes. So Snakemake's plain comparison of file times lists exactly the partitions that
changed, before anything has run.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from millrace.common import atomic, jsonl
from millrace.common.errors import MillraceError


@dataclass(slots=True)
class Stat:
    """What tells a replaced file from an unchanged one without reading it."""

    path: str
    size: int
    mtime_ns: int
    inode: int

    @classmethod
    def of(cls, path: str | os.PathLike, status: os.stat_result | None = None) -> Stat:
        """The stat of the file that `path` leads to; `status`, if it was asked already. Raises
        OSError."""
        status = status or os.stat(path)
        return cls(os.fspath(path), status.st_size, status.st_mtime_ns, status.st_ino)

    @property
    def signature(self) -> list[int]:
        """Equal on this host as long as nobody has written to the file, or put another in its
        place."""
        return [self.size, self.mtime_ns, self.inode]

    def as_dict(self) -> dict:
        """Path, size and mtime: what a partition file records of a medium (inodes differ between
        hosts)."""
        return {
            "path": self.path,
            "size": self.size,
            "mtime_ns": self.mtime_ns,
        }


class DigestCache:
    """Facts of one kind read from files, by path and signature, so that an unchanged file is not
    read again.

    The cache is disposable: a missing or damaged one costs time, never truth. So does one of
    another `version`: give another where the facts change their meaning, or depend on more than the
    file.
    """

    def __init__(self, path: str | os.PathLike, version: int = 1) -> None:
        self.path = Path(path)
        self.version = version
        self._old: dict[str, list] = {}
        self._new: dict[str, list] = {}
        try:
            stored = orjson.loads(self.path.read_bytes())
            if stored["version"] == version:
                self._old = stored["entries"]
        except (OSError, ValueError, KeyError, TypeError):
            pass

    def get(self, stat: Stat, read: Callable[[str], Any]) -> Any:
        """The facts of the file: cached where size, mtime and inode are as they were, else
        `read(path)`."""
        entry = self._new.get(stat.path) or self._old.get(stat.path)
        if entry is None or entry[0] != stat.signature:
            entry = [stat.signature, read(stat.path)]
        self._new[stat.path] = entry
        return entry[1]

    def save(self) -> None:
        """Store the entries asked for since the cache was opened; others are dropped."""
        if self._new != self._old:
            atomic.write_bytes(
                self.path, orjson.dumps({"version": self.version, "entries": self._new})
            )


@dataclass(slots=True)
class Placement:
    """Where an item lives for ever: partition `number` (from 0) of its `group`. Costs bound
    partitions."""

    item: str
    group: str
    number: int
    cost: float
    labels: dict[str, Any] = field(default_factory=dict)

    def as_row(self) -> dict[str, Any]:
        """A line of the assignment file."""
        row = {
            "item": self.item,
            "group": self.group,
            "number": self.number,
            "cost": self.cost,
        }
        return row | self.labels


class Assignment:
    """The append-only table item -> partition. A known item never moves; a new one fills the last
    partition.

    `limit` bounds the sum of costs of a partition (a single dearer item gets one alone). The file
    is precious where placements mean more than grouping (the splits of a data set), so a damaged
    one is an error, never remade. `labels` are the further fields that every line must have.
    """

    def __init__(self, path: str | os.PathLike, limit: float, labels: Sequence[str] = ()) -> None:
        self.path = Path(path)
        self.limit = limit
        self.labels = tuple(labels)
        self.placements: dict[str, Placement] = {}
        self._last: dict[str, tuple[int, float]] = {}
        # Placements that are for ever: those of the file; and those of this parse.
        self.saved: list[Placement] = []
        self.added: list[Placement] = []
        if self.path.exists():
            for number, row, _ in jsonl.lines(self.path):
                placement = self._parse(number, row)
                known = self.placements.get(placement.item)
                if known is None:
                    self._enter(placement)
                elif known != placement:
                    raise MillraceError(
                        f"{placement.item} is placed twice, and differently",
                        f"{self.path}, line {number}",
                        (
                            "Keep the line that is older in git: a recording must not change its"
                            " split"
                        ),
                    )
            self.saved = list(self.placements.values())

    def _parse(self, number: int, row: Any) -> Placement:
        try:
            item, group, partition, cost = (
                row.pop(key) for key in ("item", "group", "number", "cost")
            )
            if any(key not in row for key in self.labels):
                raise KeyError
            # Few groups and splits, many lines: each text is in memory once.
            labels = {
                key: sys.intern(value) if type(value) is str else value
                for key, value in row.items()
            }
            placement = Placement(
                str(item), sys.intern(str(group)), int(partition), float(cost), labels
            )
            if placement.number < 0 or not 0 <= placement.cost < float("inf"):
                raise ValueError
            return placement
        except (AttributeError, KeyError, TypeError, ValueError):
            raise MillraceError(
                "this line of the assignment file is damaged",
                f"{self.path}, line {number}",
                "Restore it from version control: a new one would move recordings between splits",
            ) from None

    def _enter(self, placement: Placement) -> None:
        self.placements[placement.item] = placement
        number, cost = self._last.get(placement.group, (-1, 0.0))
        if placement.number > number:
            number = placement.number
            cost = 0.0
        if placement.number == number:
            cost += placement.cost
        self._last[placement.group] = (number, cost)

    def get(self, item: str) -> Placement | None:
        """Where an item is placed; None for a new one."""
        return self.placements.get(item)

    def place(
        self, item: str, group: str, cost: float, labels: Mapping[str, Any] | None = None
    ) -> Placement:
        """Place a new item in the last open partition of the group, or in a new one; a known item
        stays."""
        if item in self.placements:
            return self.placements[item]
        number, used = self._last.get(group, (0, 0.0))
        if used and used + cost > self.limit:
            number += 1
        placement = Placement(item, group, number, round(cost, 6), dict(labels or {}))
        self._enter(placement)
        self.added.append(placement)
        return placement

    def content(self) -> bytes:
        """The table as a file; the old lines keep their places."""
        rows = (placement.as_row() for placement in self.placements.values())
        return b"".join(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE) for row in rows)


def sync_files(folder: str | os.PathLike, contents: Mapping[str, Any]) -> None:
    """Make `folder` hold exactly `contents` (id -> JSON value); what is equal is not written."""
    files = PartitionFiles(folder)
    for name, value in contents.items():
        files.write(name, value)
    files.delete_others()


class PartitionFiles:
    """The partition files of a folder, written one by one, as those of a large corpus take
    memory."""

    def __init__(self, folder: str | os.PathLike) -> None:
        self.folder = Path(folder)
        self.names: list[str] = []

    def write(self, name: str, content: Any) -> None:
        """Write a partition file, unless it is there and equal."""
        atomic.write_if_changed(self.folder / f"{name}.json", atomic.json_bytes(content))
        self.names.append(name)

    def delete_others(self) -> None:
        """Delete the files of partitions that were not written."""
        written = set(self.names)
        for path in sorted(self.folder.glob("*.json")):
            if not path.name.startswith(".") and path.stem not in written:
                path.unlink()
