"""Locks that a killed run leaves behind: told apart from those of a living run, and removed.

Snakemake's lock names files, not its holder, so after a SIGKILL every run stops until somebody types
`--unlock`. Each main process of Millrace notes who it is while it lasts, from its parse on, for the lock is
taken long before the first job starts (conda environments are made in between). A later parse removes the
lock when all who were noted are dead.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import shutil
import signal
import socket
import threading
from pathlib import Path
from typing import Any

from millrace.common import atomic, jsonl

NOTES = Path(".snakemake/millrace.runs")
LOCKS = Path(".snakemake/locks")


def enter() -> None:
    """Note that this process parses the workflow of the current folder, and may take its lock."""
    _write(local=True)
    atexit.register(_forget, _note().absolute(), os.getpid())


def begin(local: bool) -> None:
    """Note that this process runs jobs; `local` is whether they die with it. Call it in `onstart`.

    Also keeps Snakemake from hanging at SIGTERM: its handler waits for a lock that the thread it interrupts
    may hold.
    """
    _write(local)
    snakemakes = signal.getsignal(signal.SIGTERM)
    if callable(snakemakes) and threading.current_thread() is threading.main_thread():

        def stop(number: int, frame: object) -> None:
            threading.Thread(target=snakemakes, args=(number, frame), daemon=True, name="stop").start()

        signal.signal(signal.SIGTERM, stop)


def is_held() -> bool:
    """Whether a run holds the lock of the current folder."""
    try:
        return any(os.scandir(LOCKS))
    except FileNotFoundError:
        return False


def clear_stale() -> str:
    """Remove the lock where all who may hold it were local, on this host, and are dead; return what was done,
    or ''.

    Jobs of a dead cluster run may still be writing, so its lock is left to the user, who is told what to do.
    """
    held, notes = is_held(), _notes()
    dead = [(path, note) for path, note in notes if note["host"] == socket.gethostname() and not _lives(note)]
    if held and (not notes or len(dead) < len(notes)):
        return ""
    pids = " and ".join(str(note["pid"]) for _, note in dead)
    if held and not all(note["local"] for _, note in dead):
        return (
            f"the run that holds the lock (process {pids}) is dead, but its cluster jobs may be alive; wait for them "
            "or cancel them, then `snakemake --unlock`"
        )
    if held:
        shutil.rmtree(LOCKS, ignore_errors=True)
    for path, _ in dead:
        with contextlib.suppress(OSError):
            path.unlink()
    return f"removed the lock of a run that was killed (process {pids})" if held else ""


def _note() -> Path:
    host = re.sub(r"[^A-Za-z0-9.-]", "_", socket.gethostname())
    return NOTES / f"{host}-{os.getpid()}.json"


def _write(local: bool) -> None:
    pid = os.getpid()
    note = {"host": socket.gethostname(), "pid": pid, "started": _started(pid), "local": local}
    # A folder that cannot be written to is reported where it matters; a dry run does not need to write.
    with contextlib.suppress(OSError):
        atomic.write_json(_note(), note)


def _forget(path: Path, pid: int) -> None:
    if os.getpid() == pid:  # and not a fork of that process
        with contextlib.suppress(OSError):
            path.unlink()


def _notes() -> list[tuple[Path, dict[str, Any]]]:
    """The notes that can be read; what is not in this format belongs to nobody."""
    found = []
    for path in sorted(NOTES.glob("*.json")):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            note = jsonl.read(path)
            found.append((path, {key: note[key] for key in ("host", "pid", "started", "local")}))
    return found


def _lives(note: dict[str, Any]) -> bool:
    return _started(note["pid"]) == note["started"]


def _started(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; None where there is none. Tells a reused pid
    apart."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return int(stat.rpartition(")")[2].split()[19])
