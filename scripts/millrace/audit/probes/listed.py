"""Files that a data set lists in its attributes: what looks like a path, and below which folders it
is looked for."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from millrace.audit.runner.digest import members
from millrace.audit.splits.samples import MEDIA


def roots(owner: Any) -> list[str]:
    """The folders from which paths may begin: the working one, and those in attributes."""
    attributes = getattr(owner, "__dict__", {}).values()
    texts = [str(value) for value in attributes if isinstance(value, (str, Path))]
    return ["", *filter(os.path.isdir, texts)]


def paths(entry: Any) -> Iterator[str]:
    """What looks like a file's path in an entry of a list: the entry itself, or parts of it."""
    parts = [entry]
    parts += (part for _, part in members(entry))
    for part in parts:
        if isinstance(part, (str, Path)) and Path(part).suffix:
            yield str(part)


def media(entry: Any, owner: Any) -> Iterator[str]:
    """Yield the files with sound or pictures that an entry of an owner's list names."""
    folders = roots(owner)
    for path in paths(entry):
        if path.lower().endswith(MEDIA):
            places = (os.path.join(root, path) for root in folders)
            yield from filter(os.path.isfile, places)
