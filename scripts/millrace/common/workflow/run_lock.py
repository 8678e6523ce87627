"""Who holds the workflow's lock: Snakemake's own names files, not its holder, and outlives a killed run.

So each main process of Millrace leaves a note while it lasts, named after its process and host. A later parse
that finds the lock, and everybody who noted himself dead, says so; removing the lock stays the user's choice.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import socket
from pathlib import Path

from millrace.common import processes

NOTES = Path(".snakemake/millrace.runs")
LOCKS = Path(".snakemake/locks")


def enter() -> None:
    """Note that this process parses the workflow of the current folder, and may take its lock."""
    pid = os.getpid()
    note = (NOTES / f"{pid}-{processes.started(pid)}@{socket.gethostname()}").absolute()

    def forget() -> None:
        if os.getpid() == pid:  # and not a fork of that process
            with contextlib.suppress(OSError):
                note.unlink()

    # A folder that cannot be written to is reported where it matters; a dry run does not need to write.
    with contextlib.suppress(OSError):
        note.parent.mkdir(parents=True, exist_ok=True)
        note.touch()
        atexit.register(forget)


def is_held() -> bool:
    """Whether a run, dead or alive, holds the lock of the current folder."""
    try:
        return any(os.scandir(LOCKS))
    except FileNotFoundError:
        return False


def stale() -> str:
    """What to tell the user if the lock is that of dead processes of this host, else "".

    Notes of the dead are removed once there is no lock.
    """
    dead: dict[int, Path] = {}
    others = 0
    for note in sorted(NOTES.glob("*-*@*")) if NOTES.is_dir() else []:
        process, _, host = note.name.partition("@")
        pid, _, started = process.partition("-")
        if pid.isdigit() and host == socket.gethostname() and str(processes.started(int(pid))) != started:
            dead[int(pid)] = note
        else:
            others += 1
    if not is_held():
        for note in dead.values():
            with contextlib.suppress(OSError):
                note.unlink()
    if not dead or others or not is_held():
        return ""
    return (
        f"the workflow is locked by a run that was killed (process {' and '.join(map(str, dead))}). "
        "Once its cluster jobs have ended, if it had any: `snakemake --unlock`, then the same command again"
    )
