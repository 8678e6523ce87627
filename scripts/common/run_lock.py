"""Locks that a killed run leaves behind: told apart from those of a living run, and removed.

Snakemake's lock names files, not its holder, so after a SIGKILL every run stops until somebody types `--unlock`. A
run of Millrace notes who it is while it lasts; a later parse removes the lock when that process is dead.
"""

from __future__ import annotations

import os
import shutil
import socket
from pathlib import Path

from scripts.common import atomic, jsonl

NOTE = Path(".snakemake/millrace.run.json")
LOCKS = Path(".snakemake/locks")


def begin(local: bool) -> None:
    """Note that this process runs the workflow in the current folder; `local` is whether its jobs die with it."""
    pid = os.getpid()
    note = {"host": socket.gethostname(), "pid": pid, "started": _started(pid), "local": local}
    atomic.write_json(NOTE, note)


def end() -> None:
    """Forget the note."""
    NOTE.unlink(missing_ok=True)


def is_held() -> bool:
    """Whether a run holds the lock of the current folder."""
    try:
        return any(os.scandir(LOCKS))
    except FileNotFoundError:
        return False


def clear_stale() -> str:
    """Remove the lock where the run that took it was local, on this host, and is dead; return what was done, or ''.

    Jobs of a dead cluster run may still be writing, so its lock is left to the user, who is told what to do.
    """
    if not is_held():
        return ""
    try:
        note = jsonl.read(NOTE)
        pid, alive = note["pid"], _started(note["pid"]) == note["started"]
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    if alive or note["host"] != socket.gethostname():
        return ""
    if not note["local"]:
        return (
            f"the run that holds the lock (process {pid}) is dead, but its cluster jobs may be alive; wait for them "
            "or cancel them, then `snakemake --unlock`"
        )
    shutil.rmtree(LOCKS, ignore_errors=True)
    end()
    return f"removed the lock of a run that was killed (process {pid})"


def _started(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; None where there is none. Tells a reused pid apart."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return int(stat.rpartition(")")[2].split()[19])
