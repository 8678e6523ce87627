"""How placements of items last: a parse drafts them, the first job that reads a partition saves
them, and without them nothing is built over results that are there.

A parse writes partition files, and beside them a draft: what the assignment file is to hold. A step
that reads a partition keeps the draft before it does anything else. So placements last however the
workflow is run (as a module, without hooks, on a cluster, killed half-way), and a dry run decides
nothing.
"""

from __future__ import annotations

import glob
import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from millrace.common import atomic, jsonl
from millrace.common.errors import MillraceError
from millrace.common.workflow.differences import Items

# In the folder of the partitions. The state tells the next parse that nothing has changed.
DRAFT = "index/draft.json"
STATE = "index/state.json"


class Placements(Protocol):
    """Where items live for ever: an Assignment, or the order of an image folder."""

    path: Path
    saved: list[Any]  # those of the file
    added: list[Any]  # those of this parse

    def content(self) -> bytes:
        """What the file holds when those of this parse are kept."""
        ...


def settings_file(placements: Placements) -> Path:
    """The settings that decided on the saved placements, beside them."""
    return placements.path.with_suffix(".settings.json")


def settings_when_placed(placements: Placements) -> dict[str, Any]:
    """The settings that decided on the saved placements; {} if there are none."""
    if placements.saved:
        return jsonl.read_or({}, settings_file(placements))
    return {}


def write_draft(folder: Path, placements: Placements, settings: Mapping[str, Any]) -> None:
    """Note for the jobs over the partitions of `folder` what they have to keep, if there is
    anything."""
    files: dict[Path, bytes] = {}
    if placements.added:
        files[placements.path] = placements.content()
    if settings and settings_when_placed(placements) != settings:
        files[settings_file(placements)] = atomic.json_bytes(settings)
    if not files:
        (folder / DRAFT).unlink(missing_ok=True)
        return

    # Absolute: a step may be run by hand, in any folder.
    draft = {
        os.path.abspath(path): {"before": _digest(path), "content": content.decode()}
        for path, content in files.items()
    }
    atomic.write_if_changed(folder / DRAFT, atomic.json_bytes(draft))


def read_partition(path: str | os.PathLike) -> Any:
    """The content of a partition file, for a step; from now on its items stay where they are.

    Raises MillraceError if the assignment file was changed since the partitions were made.
    """
    keep_draft(Path(path).parent)
    return jsonl.read(path)


def keep_draft(folder: Path) -> None:
    """Write the placements that the partitions in `folder` rest on, unless a job has done so
    before.

    Jobs that do it at the same time write the same bytes.
    """
    draft = jsonl.read_or({}, folder / DRAFT)
    for path, file in draft.items():
        after = _sha256(file["content"].encode())
        if _digest(path) not in (file["before"], after):
            remedy = (
                "Run the workflow once more: it makes the partitions again, by the file as it"
                " is now"
            )
            raise MillraceError(
                "the file was changed after partitions were made by it", path, remedy
            )
        atomic.write_if_changed(path, file["content"].encode())
    if draft:
        (folder / STATE).unlink(missing_ok=True)
        (folder / DRAFT).unlink(missing_ok=True)


def require_kept(placements: Placements, folder: Path, items: Items) -> None:
    """Raise MillraceError if nothing is placed, but there are results that rest on placements."""
    patterns = (output.format("*") for output in items.outputs)
    result = next((path for pattern in patterns for path in glob.iglob(pattern)), None)
    if placements.saved or result is None:
        return
    path = placements.path
    noun = items.noun
    remedy = (
        f"It says where each {noun} belongs, for ever. Bring it back: `git checkout {path}`, or a"
        f" copy. To place all anew, delete {folder.parent} too: test {noun}s may then come into"
        " train"
    )
    problem = f"the file is missing, or empty, but what was built rests on it ({result})"
    raise MillraceError(problem, str(path), remedy)


def _digest(path: str | os.PathLike) -> str:
    """Of a file's content; "" if there is no file."""
    try:
        return _sha256(Path(path).read_bytes())
    except FileNotFoundError:
        return ""


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
