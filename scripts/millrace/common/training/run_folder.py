"""A training run's folder notes what it was trained with: a changed run never goes on from it, and
only one process trains there."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from millrace.common import atomic, jsonl
from millrace.common.cli import log
from millrace.common.errors import MillraceError

NOTE = "run.json"
PREVIOUS = "previous"
_REMEDY = (
    "Wait for it, end it, or name another --output-dir. Start the ranks of one run with"
    " millrace.common.training.launch, not with srun alone"
)


@contextlib.contextmanager
def held(
    folder: str | os.PathLike,
    patience: float = 60.0,
    lock: str = ".lock",
    problem: str = "another process is training here",
    remedy: str = _REMEDY,
) -> Iterator[None]:
    """Keep other processes out of `folder` while this one trains in it; `lock` is a file there.

    Waits `patience` seconds, for the ranks of a launcher that was killed end their step first; then
    raises MillraceError. Call it on one rank. Where the file system has no locks, nobody is kept
    out.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    # Of the process (lockf), not of the open file: workers inherit files, and may live a little
    # longer.
    with open(folder / lock, "ab") as handle:
        deadline = time.monotonic() + patience
        is_said = False
        while True:
            try:
                fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as error:
                if error.errno not in (errno.EAGAIN, errno.EACCES):
                    break
            if time.monotonic() >= deadline:
                raise MillraceError(problem, str(folder), remedy)
            if not is_said:
                log.warning("%s: %s; waiting %.0f s", folder, problem, patience)
            is_said = True
            time.sleep(0.2)
        yield


def claim(folder: str | os.PathLike, identity: Mapping[str, Any]) -> str:
    """Make `folder` the folder of the run that `identity` describes; return the run's digest.

    A folder of the same run is left as it is: the run goes on. What another run has left is moved
    to `previous/<its digest>`, where its checkpoints stay whole. Call it on one rank, before the
    others look. Raises MillraceError for a folder that holds files of no run.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    digest = jsonl.digest(identity)[:12]
    before = jsonl.read_or({}, folder / NOTE).get("digest")
    if before == digest:
        return digest

    visible = [path for path in sorted(folder.iterdir()) if not path.name.startswith(".")]
    stale = [path for path in visible if path.name not in (NOTE, PREVIOUS)]
    if stale and before is None:
        problem = f"holds {stale[0].name}, which is of no run"
        raise MillraceError(problem, str(folder), "Name a folder of the run's own, or move it away")
    if stale:
        target = _free(folder / PREVIOUS / before)
        target.mkdir(parents=True)
        for path in stale:
            path.rename(target / path.name)
        log.info(
            "%s holds another run; it was moved to %s, and this one begins anew", folder, target
        )
    atomic.write_json(folder / NOTE, {"digest": digest, "run": identity})
    return digest


def _free(target: Path) -> Path:
    """The path, or with -2, -3, ... at its end, the first that is not there."""
    number = 1
    free = target
    while free.exists():
        number += 1
        free = target.with_name(f"{target.name}-{number}")
    return free
