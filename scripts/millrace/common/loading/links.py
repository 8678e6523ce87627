"""Folders below a folder, those behind links too, and links that have no end."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from millrace.common.errors import MillraceError


def walk(folder: str | os.PathLike[str]) -> Iterator[tuple[str, list[str]]]:
    """The path of each folder below `folder`, itself included, and the names of its files.

    Raises OSError for a folder that cannot be listed, MillraceError for a link to a folder that it
    lies in.
    """

    def refuse(error: OSError) -> None:
        raise error

    for place, _, names in os.walk(os.fspath(folder), onerror=refuse, followlinks=True):
        _check_end(place)
        yield place, names


def _check_end(place: str) -> None:
    if not os.path.islink(place):
        return
    target = Path(os.path.realpath(place))
    folders = [Path(os.path.realpath(above)) for above in Path(place).parents]
    if any(folder.is_relative_to(target) for folder in folders):
        problem = "a link to a folder that it lies in"
        raise MillraceError(problem, place, "Remove it: it has no end")
