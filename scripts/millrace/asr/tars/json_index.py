"""The index of a tar as JSON beside it, `<tar>.index.json`: {member: {offset, size}}, for other
readers."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Iterator

from millrace.asr.tars.scan import FAILED, TarScan
from millrace.common import atomic
from millrace.common.errors import MillraceError


def path_of(tar: str) -> str:
    """Where the index of a tar lies."""
    return tar + ".index.json"


def is_current(tar: str) -> bool:
    """Whether a tar has such an index that is not older than the tar."""
    try:
        return os.stat(path_of(tar)).st_mtime_ns >= os.stat(tar).st_mtime_ns
    except (OSError, ValueError):
        return False


def written(scans: Iterable[TarScan], kept: Collection[str]) -> Iterator[TarScan]:
    """Pass scans on, and write the indices of their tars; not of those in `kept`, which have
    one."""
    for scan in scans:
        if scan.path not in kept and scan.status not in FAILED:
            write(scan)
        yield scan


def write(scan: TarScan) -> None:
    """Write the index of a tar: its members that have bytes, as the tar names them and without
    `./`.

    Of several members of one name the last counts. Raises MillraceError if the folder cannot be
    written.
    """
    index = {}
    addresses = zip(
        scan.written, scan.names, scan.offsets.tolist(), scan.sizes.tolist(), strict=True
    )
    for written, name, offset, size in addresses:
        if offset >= 0:
            index[os.fsdecode(written)] = index[os.fsdecode(name)] = {
                "offset": offset,
                "size": size,
            }
    try:
        # ASCII: a name that is not UTF-8 is kept as surrogates, as tarfile reads it.
        atomic.write_text(path_of(scan.path), json.dumps(index))
    except OSError as error:
        remedy = (
            "Leave out --json, or make the folder writable: the parquet index needs nothing there"
        )
        raise MillraceError(
            f"cannot be written ({error.strerror})", path_of(scan.path), remedy
        ) from None
