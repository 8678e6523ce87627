"""Which tars paths and patterns name (no URLs, braces, or tar named twice), and their indices, made
on first use and kept beside them; damaged tars are refused."""

from __future__ import annotations

import contextlib
import dataclasses
import glob
import hashlib
import logging
import os
import re
from collections.abc import Hashable, Sequence, Set
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from millrace.asr.loading.reader import TarState
from millrace.asr.tars.header import MULTI_VOLUME, SPARSE
from millrace.asr.tars.index import known_index, write_index
from millrace.asr.tars.partition import scan_all
from millrace.asr.tars.scan import FAILED, PARTIAL, TarScan
from millrace.common import atomic
from millrace.common.errors import Damaged, MillraceError, counted
from millrace.common.loading.arguments import path_of, several

log = logging.getLogger("millrace")

FOLDER = ".millrace"
"""The folder beside tars that holds their indices."""

_THREADS = 4
_GLOB = frozenset("*?[")
_FOREIGN = re.compile(r"\{|://|^pipe:")  # as webdataset takes them


class IndexedTar(NamedTuple):
    """A tar as it is, and its members (name, offset, size, kind) in the order they have there."""

    state: TarState
    members: pa.Table


def tar_paths(paths: str | os.PathLike | Sequence[str | os.PathLike]) -> list[str]:
    """Absolute paths of the tars that a pattern, or a list of paths and patterns, names.

    Those of a pattern are sorted. Raises MillraceError if a pattern names none, or a tar comes
    twice.
    """
    patterns = [paths] if isinstance(paths, str | os.PathLike) else several("paths", paths)
    if isinstance(patterns, Set):
        problem = "paths is a set, whose order is another one in each rank"
        raise MillraceError(problem, remedy="Give a list")
    tars: list[str] = []
    for given in patterns:
        pattern = path_of("one of paths", given)
        named = [pattern]
        if not _GLOB.isdisjoint(pattern) and not os.path.exists(pattern):
            named = sorted(glob.glob(pattern, recursive=True))
        if _FOREIGN.search(pattern) and not any(map(os.path.exists, named)):
            problem = "braces, URLs and pipes are not read"
            raise MillraceError(problem, pattern, "Give paths, with * for what differs, or a list")
        if not named:
            raise MillraceError("no tar has such a path", pattern, "Check folder and pattern")
        tars += map(os.path.abspath, named)

    seen: set[Hashable] = set()
    for tar in tars:
        target = _file_of(tar)  # a link would give each of its samples twice
        if target in seen:
            raise MillraceError("the tar is named twice", tar, "Name each tar once")
        seen.add(target)
    if not tars:
        raise MillraceError("no tars are named", "open_tars", "Give a pattern or paths")
    return tars


def _file_of(tar: str) -> Hashable:
    """What tells a file from others, whatever links lead to it; its path if there is none."""
    try:
        status = os.stat(tar)
    except OSError:
        return tar
    return status.st_dev, status.st_ino


def open_indices(
    tars: Sequence[str], cache_dir: str | os.PathLike | None = None
) -> list[IndexedTar]:
    """Open the index of each tar, and make those that are missing or of another state of the tar.

    They lie in FOLDER beside the tars, or in `cache_dir`. Several ranks may call this at once.
    Raises MillraceError if tars are damaged, missing or no tars, and if an index cannot be written.
    """
    places = {tar: _place(tar, cache_dir) for tar in tars}
    stale = [tar for tar in tars if _opened(tar, places[tar]) is None]
    for folder in sorted({places[tar].parent for tar in stale}):
        _make([tar for tar in stale if places[tar].parent == folder], places, folder)

    indices = []
    for tar in tars:
        opened = _opened(tar, places[tar])
        if opened is None:
            raise MillraceError("the tar changes while it is read", tar, "Wait until it is whole")
        indices.append(opened)
    return indices


def _place(tar: str, cache_dir: str | os.PathLike | None) -> Path:
    """The path of a tar's index."""
    folder, name = os.path.split(tar)
    if cache_dir is None:
        return Path(folder, FOLDER, f"{name}.parquet")
    # Tars of one name in several folders share the cache.
    origin = hashlib.sha256(os.fsencode(folder)).hexdigest()[:12]
    return Path(os.path.abspath(cache_dir), f"{origin}-{name}.parquet")


def _opened(tar: str, place: Path) -> IndexedTar | None:
    """A tar with the index at `place`; None if none can be read of the tar as it is now."""
    index = known_index(place)
    if index is None:
        return None
    (record,) = index.tars.values()
    with contextlib.suppress(OSError, Damaged):  # an index that is damaged is made anew
        now = os.stat(tar)
        if (record.size, record.mtime_ns) == (now.st_size, now.st_mtime_ns):
            # Not the recorded path: index and tars may have moved together.
            state = TarState(tar, record.size, record.mtime_ns, digest=record.digest)
            return IndexedTar(state, index.members(record.path))
    return None


def _make(tars: list[str], places: dict[str, Path], folder: Path) -> None:
    """Scan tars and write their indices, unless another process does it meanwhile."""
    refused: list[MillraceError] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with atomic.locked(folder / ".lock"):
            stale = [tar for tar in tars if _opened(tar, places[tar]) is None]
            if stale:
                log.info("indexing %s", counted(len(stale), "tar"))
            for scan in scan_all(stale, _THREADS):
                problem = _problem(scan)
                if problem:
                    remedy = "Make the tar again, or leave it out"
                    refused.append(MillraceError(problem, scan.path, remedy))
                    continue
                if scan.reason:
                    log.warning("%s: %s: %s", scan.path, scan.status, scan.reason)
                # Keys are made of names as they are written, "./" included.
                write_index(places[scan.path], [dataclasses.replace(scan, names=scan.written)])
    except OSError as error:
        problem = f"the index of tars cannot be written ({error.strerror})"
        raise MillraceError(problem, str(folder), "Give a cache_dir that is writable") from None
    for other in refused[1:]:
        log.error("%s", other)
    if refused:
        raise refused[0]


def _problem(scan: TarScan) -> str:
    """Why a tar is refused: samples of it would be missing or cut; "" if it is whole."""
    if scan.status in (*FAILED, *PARTIAL):
        return f"{scan.status}: {scan.reason}"
    if np.isin(scan.kinds, (SPARSE, MULTI_VOLUME)).any():
        return scan.reason
    return ""
