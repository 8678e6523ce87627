"""Take copies of held-out sound out of tars that are cut, and put back what is none any more.

What leaves `x-00000.tar` is kept beside it, in `.x-00000.left_out`: a tar, hidden as the sidecar
is. So nothing is cut again: the tar and that file always hold all segments together, and a tar that
gets its segments back has the bytes that it had. The sidecar tells which segments are where: those
left out have no offset, and the status of a duplicate.
"""

from __future__ import annotations

import contextlib
import tarfile
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from millrace.common import atomic
from millrace.common.errors import Damaged, MillraceError
from millrace.speech.columns import COMPLETED, DUPLICATE, SIDECAR_SCHEMA
from millrace.speech.shards.index import Sidecar, sidecar_of, write_sidecar
from millrace.speech.shards.tar_writer import TarWriter


def path_beside(tar: Path) -> Path:
    """Where the segments lie that were left out of a tar."""
    return tar.with_name(f".{tar.stem}.left_out")


def settle(tar: Path, copies: Mapping[str, str]) -> bool:
    """Leave those segments out of a tar whose keys are in `copies`, which says why, and no others.

    Returns whether the tar has changed. After a crash in between, the same call mends it. Raises
    MillraceError for a tar without its sidecar, or without a segment that the sidecar names.
    """
    sidecar = sidecar_of(tar)
    rows = sidecar.table.to_pylist()
    before = {row["key"]: row["error_message"] for row in rows if row["status"] == DUPLICATE}
    cut = sidecar.cut()
    wanted = {row["key"]: copies[row["key"]] for row in cut if row["key"] in copies}
    size = tar.stat().st_size if tar.exists() else 0
    if before.keys() == wanted.keys() and size == sidecar.tar_size:
        if before != wanted:
            table = _table(rows, wanted, {})
            write_sidecar(tar, replace(sidecar, table=table))
        if not wanted:  # the tar was cut anew, or a run was killed
            path_beside(tar).unlink(missing_ok=True)
        return False

    beside = path_beside(tar)
    with _Members([tar, beside]) as members:
        # Each step leaves all segments in one of the two files.
        if wanted.keys() - before.keys():
            _write(beside, cut, before.keys() | wanted.keys(), members)
        left = {row["key"] for row in cut} - wanted.keys()
        written = _write(tar, cut, left, members)
        table = _table(rows, wanted, written.offsets)
        write_sidecar(tar, Sidecar(sidecar.digest, written.size, written.sha256, table))
        # Where copies only leave, the first step has written just these.
        if not before.keys() < wanted.keys():
            _write(beside, cut, wanted.keys(), members)
    return True


class _Members:
    """The members of a tar and of the file beside it, by name: those of the first come first."""

    def __init__(self, paths: list[Path]) -> None:
        self._path = paths[0]
        self._files = contextlib.ExitStack()
        self._members: dict[str, tuple[tarfile.TarFile, tarfile.TarInfo]] = {}
        for path in paths:
            if not path.exists():
                continue
            try:
                archive = self._files.enter_context(tarfile.TarFile(path))
                for member in archive:
                    self._members.setdefault(member.name, (archive, member))
            except tarfile.TarError as error:
                raise Damaged(path, str(error)) from None

    def read(self, name: str) -> bytes:
        """The content of a member."""
        archive, member = self._members.get(name, (None, None))
        file = archive.extractfile(member) if archive and member else None
        if file is None:
            remedy = "Delete the tar: the next run cuts it again"
            raise MillraceError(f"{name} is missing", str(self._path), remedy)
        return file.read()

    def __enter__(self) -> _Members:
        return self

    def __exit__(self, *exc: object) -> None:
        self._files.close()


class _Written(NamedTuple):
    """A tar: its bytes, its SHA-256 (None if there is none), where the audio of each key lies."""

    size: int
    sha256: str | None
    offsets: Mapping[str, int]


def _write(path: Path, rows: list[dict], keys: Collection[str], members: _Members) -> _Written:
    """Write the segments of these keys in the order of rows; no file if there are none."""
    chosen = [row for row in rows if row["key"] in keys]
    if not chosen:
        path.unlink(missing_ok=True)
        return _Written(0, None, {})
    offsets: dict[str, int] = {}
    with atomic.replacing(path) as partial, TarWriter(partial) as writer:
        for row in chosen:
            text = f"{row['member'].rpartition('.')[0]}.json"
            audio = members.read(row["member"])
            offsets[row["key"]] = writer.add(row["member"], audio)
            writer.add(text, members.read(text))
    return _Written(writer.size, writer.sha256, offsets)


def _table(rows: list[dict], copies: Mapping[str, str], offsets: Mapping[str, int]) -> pa.Table:
    """The rows of a sidecar whose `copies` are left out, the others of which lie at `offsets`, or
    where they lay."""
    changed = []
    for row in rows:
        state: dict[str, str | int | None] = {}
        key = row["key"]
        if key in copies:
            state = {
                "status": DUPLICATE,
                "error_message": copies[key],
                "offset": None,
            }
        elif key in offsets:
            state = {
                "status": COMPLETED,
                "error_message": "",
                "offset": offsets[key],
            }
        changed.append(row | state)
    return pa.Table.from_pylist(changed, schema=SIDECAR_SCHEMA)
