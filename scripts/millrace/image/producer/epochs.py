"""Epoch folders: epoch 0 is `train/`, epoch e is `train_<e>/`, whole as soon as it has that name.

A folder is removed only if it bears the producer's mark, a file that is written before the folder
is named.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
from pathlib import Path
from typing import Any

from millrace.common import jsonl
from millrace.common.cli import log
from millrace.common.errors import own_file

MARK = "epoch.json"
MAKER = "millrace.image.create_epochs"
_EPOCH = re.compile(r"train_([1-9]\d*)")
# What a killed producer, or a removal that was cut short, has left.
_LEFT_OVER = re.compile(r"\.train_[1-9]\d*\..+\.(partial|removed)")


def folder_of(root: str | os.PathLike, epoch: int) -> Path:
    """The folder that epoch `epoch` is read from."""
    return Path(root) / (f"train_{epoch}" if epoch else "train")


def read_mark(root: str | os.PathLike, epoch: int) -> dict[str, Any] | None:
    """The mark of `train_<epoch>/`; None if there is no such folder, or if the producer has not
    made it."""
    path = folder_of(root, epoch) / MARK
    try:
        with own_file(path):
            mark = jsonl.read(path)
            return mark if mark.get("maker") == MAKER else None
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ESTALE):
            return None
        raise


def whole(root: str | os.PathLike[str]) -> dict[int, dict[str, Any]]:
    """The epochs that lie whole in `root`, with their marks, in order."""
    marks = {}
    for entry in os.scandir(root):
        name = _EPOCH.fullmatch(entry.name)
        if not name or not entry.is_dir():
            continue
        epoch = int(name[1])
        mark = read_mark(root, epoch)
        if mark:
            marks[epoch] = mark
    return dict(sorted(marks.items()))


def remove(root: str | os.PathLike, epoch: int) -> bool:
    """Remove `train_<epoch>/` if it bears the mark; readers see it whole or not at all."""
    if epoch < 1 or read_mark(root, epoch) is None:
        return False
    folder = folder_of(root, epoch)
    aside = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.removed")
    try:
        folder.rename(aside)
    except FileNotFoundError:  # the other side was quicker
        return False
    _delete(aside)
    return True


def sweep(root: str | os.PathLike[str]) -> None:
    """Delete what was cut short. For the one producer only, before it makes an epoch."""
    for name in sorted(entry.name for entry in os.scandir(root)):
        if _LEFT_OVER.fullmatch(name):
            _delete(Path(root) / name)


def _delete(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    if folder.exists():  # a network file system keeps files that somebody has open
        log.warning(
            "%s: some files are still open; the next start of the producer removes them", folder
        )
