"""Files that appear whole or not at all: written beside their place, fsynced, then renamed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

from millrace.common import processes

_HOST = re.sub(r"[^A-Za-z0-9]", "_", socket.gethostname()) or "host"


@contextlib.contextmanager
def replacing(path: str | os.PathLike) -> Iterator[Path]:
    """Yield a temporary path beside `path`; on a clean exit fsynced and renamed to `path`, else
    removed.

    The name holds host and pid, so that two jobs writing the same file (a restarted cluster run)
    never share a temporary; what a killed process on this host left behind is removed first.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    sweep_partials(path)
    partial = partial_of(path)
    try:
        yield partial
        with open(partial, "rb") as handle:
            os.fsync(handle.fileno())
        os.replace(partial, path)
        fsync_folder(path.parent)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def partial_of(path: Path) -> Path:
    """The temporary of `path`, a file or a folder, that this process writes."""
    return path.parent / f".{path.name}.{_HOST}-{os.getpid()}.partial"


def sweep_partials(path: Path) -> None:
    """Remove temporaries of `path` whose writer on this host is dead."""
    _sweep(path.parent, re.escape(path.name))


def sweep_folder(folder: Path) -> None:
    """Remove the temporaries in `folder` whose writer on this host is dead, whatever they were to
    become."""
    _sweep(folder, ".+")


def _sweep(folder: Path, names: str) -> None:
    ours = re.compile(rf"\.{names}\.{_HOST}-(\d+)\.partial")
    try:
        found = [(entry, ours.fullmatch(entry.name)) for entry in os.scandir(folder)]
    except FileNotFoundError:
        return
    for entry, match in found:
        if match is None or processes.started(int(match[1])) is not None:
            continue
        if entry.is_dir():
            shutil.rmtree(entry.path, ignore_errors=True)
        else:
            Path(entry.path).unlink(missing_ok=True)


@contextlib.contextmanager
def locked(path: str | os.PathLike) -> Iterator[None]:
    """Let one process of the node at a time go on, if the file system has locks.

    Without them several write what is written here, and each file still appears whole.
    """
    with open(path, "w") as lock:
        with contextlib.suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def write_bytes(path: str | os.PathLike, content: bytes) -> None:
    """Write `content` to `path` atomically."""
    with replacing(path) as partial:
        partial.write_bytes(content)


def write_text(path: str | os.PathLike, text: str) -> None:
    """Write `text` as UTF-8 with the line ends it has."""
    write_bytes(path, text.encode("utf-8"))


def write_json(path: str | os.PathLike, value: object) -> None:
    """Write `value` as indented, key-sorted JSON: the same value gives the same bytes."""
    write_bytes(path, json_bytes(value))


def json_bytes(value: object) -> bytes:
    """Indented, key-sorted JSON with a final newline."""
    import orjson  # not at the top: the audit has the standard library and torch only

    return orjson.dumps(
        value, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS | orjson.OPT_APPEND_NEWLINE
    )


def write_if_changed(path: str | os.PathLike, content: bytes) -> bool:
    """Write `content` only where it differs from what is there, so that an unchanged file keeps its
    mtime."""
    try:
        if os.path.getsize(path) == len(content) and Path(path).read_bytes() == content:
            return False
    except OSError:
        pass
    write_bytes(path, content)
    return True


def fsync_folder(folder: Path) -> None:
    """Have a rename in `folder` outlive a power cut."""
    # Some file systems refuse fsync on a folder; the rename itself is still atomic there.
    with contextlib.suppress(OSError):
        fd = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
