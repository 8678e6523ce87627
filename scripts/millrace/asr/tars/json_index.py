"""The index of a tar as JSON beside it, `<tar>.index.json`: {member: {offset, size}}, for other
readers."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator

from millrace.asr.tars.scan import FAILED, TarScan
from millrace.common import atomic
from millrace.common.errors import MillraceError


def written(scans: Iterable[TarScan]) -> Iterator[TarScan]:
    """Pass scans on, and write the index of each tar that could be read."""
    for scan in scans:
        if scan.status not in FAILED:
            write(scan)
        yield scan


def write(scan: TarScan) -> None:
    """Write the index of a tar: its members that have bytes, as the tar names them and without
    `./`.

    Of several members of one name the last counts. Raises MillraceError if the folder cannot be
    written.
    """
    index = {}
    offsets = scan.offsets.tolist()
    sizes = scan.sizes.tolist()
    for as_written, name, offset, size in zip(
        scan.written, scan.names, offsets, sizes, strict=True
    ):
        if offset >= 0:
            address = {"offset": offset, "size": size}
            index[os.fsdecode(as_written)] = address
            index[os.fsdecode(name)] = address
    path = scan.path + ".index.json"
    try:
        # ASCII: a name that is not UTF-8 is kept as surrogates, as tarfile reads it.
        atomic.write_text(path, json.dumps(index))
    except OSError as error:
        problem = f"cannot be written ({error.strerror})"
        remedy = "Leave out --json, or make the folder writable"
        raise MillraceError(problem, path, remedy) from None
