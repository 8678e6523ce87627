"""Files that an index lists, and that are no longer there: Snakemake knows the index only."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from millrace.common.errors import counted
from millrace.common.workflow import snakemake_state

# More lost files than this are counted.
_NAMED = 5


class Listed(NamedTuple):
    """What a lane's indices list: paths, and the declared output of the job that makes one of them.

    `maker` is asked for lost files only; None if its job has run since the index was written.
    Targets of the stages `before` end before these files are made. `stale` are outputs whose job
    must run for a reason that Snakemake does not see: they are newer than what they were made of,
    though that has changed, or `half_made`.
    """

    paths: Callable[[], Iterable[str]]
    maker: Callable[[str], str | None]
    before: Collection[str] = ()
    stale: Callable[[], Collection[str]] = tuple

    def lost(self) -> dict[str, str]:
        """The paths that are not there, and what makes them."""
        makers = {path: self.maker(path) for path in lost_files(self.paths())}
        return {path: maker for path, maker in makers.items() if maker}


def half_made(partitions: Mapping[str, Sequence[str]], index_of: Callable[[str], str]) -> list[str]:
    """The indices of partitions that were there and are not, as their job failed: the files that
    they stand for may be of what it was to make, also where that has been undone."""
    indices = [index_of(name) for names in partitions.values() for name in names]
    return [
        path for path in indices if not os.path.exists(path) and snakemake_state.is_recorded(path)
    ]


def lost_files(paths: Iterable[str]) -> list[str]:
    """Those of the paths that are not there, with one listing a folder."""
    names: dict[str, list[str]] = defaultdict(list)
    for path in paths:
        folder, _, name = path.rpartition("/")
        names[folder].append(name)
    return [f"{folder}/{name}" for folder in names for name in _missing(folder, names[folder])]


def _missing(folder: str, names: list[str]) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            # A link stays in the listing where what it leads to is gone.
            present = {
                entry.name for entry in entries if not entry.is_symlink() or os.path.exists(entry)
            }
    except (FileNotFoundError, NotADirectoryError):
        return names
    return [name for name in names if name not in present]


def shown(paths: Collection[str]) -> str:
    """The line for the user."""
    names = [os.path.basename(path) for path in paths]
    if len(names) <= _NAMED:
        return f"lost: {', '.join(names)}"
    return f"lost: {counted(len(names), 'file')}, such as {names[0]}"
