"""Who holds the workflow's lock: Snakemake's own names files, not its holder, and outlives a killed
run.

So each main process of Millrace leaves a note while it lasts, named after its process and host. A
later parse that finds the lock, and everybody who noted himself dead, says so; removing the lock
stays the user's choice.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import socket
import time
from pathlib import Path

from millrace.common import processes
from millrace.common.workflow.snakemake_state import is_locked

NOTES = Path(".snakemake/millrace.runs")


def this_run() -> str:
    """The name of this process as a run: `<pid>-<ticks since boot when it started>@<host>`."""
    return f"{os.getpid()}-{processes.started(os.getpid())}@{socket.gethostname()}"


def is_dead(run: str) -> bool:
    """Whether the run's process has ended; False if it is one of another host, which nobody here
    can see."""
    process, _, host = run.partition("@")
    pid, _, started = process.partition("-")
    return (
        pid.isdigit()
        and host == socket.gethostname()
        and str(processes.started(int(pid))) != started
    )


def enter() -> None:
    """Note that this process parses the workflow of the current folder, and may take its lock."""
    pid = os.getpid()
    note = (NOTES / this_run()).absolute()

    def forget() -> None:
        if os.getpid() == pid:  # and not a fork of that process
            with contextlib.suppress(OSError):
                note.unlink()

    # A folder that cannot be written to is reported where it matters; a dry run does not need to
    # write.
    with contextlib.suppress(OSError):
        note.parent.mkdir(parents=True, exist_ok=True)
        note.touch()
        atexit.register(forget)


def remedy(unlock: str) -> str:
    """How to remove the lock, by the command `unlock`."""
    return f"Type `{unlock}`, then the same command again"


def stale() -> str:
    """Who held the lock, if it is that of dead processes of this host, else "".

    Notes of the dead are removed once there is no lock.
    """
    dead, others = _notes()
    if not is_locked():
        for note in dead:
            with contextlib.suppress(OSError):
                note.unlink()
    if not dead or others or not is_locked():
        return ""
    return f"the workflow is locked by a run that was killed ({_names(dead)})"


def beside() -> str:
    """Who works here beside this process, else "". Asked where the folder has no lock of a living
    run.

    A run that ends takes the locks of all others in its folder with it, also if it had nothing to
    do.
    """
    here = f"@{socket.gethostname()}"
    living = [
        note
        for note in _notes()[1]
        if note.name.endswith(here) and note.name[0].isdigit() and note.name != this_run()
    ]
    if not living:
        return ""
    return f"another run goes on here ({_names(living)})"


def holder(unlock: str) -> str:
    """Who holds the lock, and what to do; the command `unlock` removes it."""
    others = [note for note in _notes()[1] if note.name != this_run()]
    if not others:
        problem = "the workflow is locked, by whom is unknown"
        return f"{problem}. If no other Snakemake works here: {remedy(unlock)}"
    problem = f"the workflow is locked by a run that goes on ({_names(others)})"
    if any(note.name.endswith(f"@{socket.gethostname()}") for note in others):
        wait = "Wait until it has ended, or stop it with Ctrl-C there; then the same command"
        return f"{problem}. {wait} again"
    wait = "If it lives, wait until it has ended. If not:"
    return f"{problem}, or was killed: look there. {wait} {remedy(unlock)}"


def _notes() -> tuple[list[Path], list[Path]]:
    """The notes of dead runs, and all others."""
    notes = sorted(NOTES.glob("*-*@*"))
    dead = [note for note in notes if is_dead(note.name)]
    return dead, [note for note in notes if note not in dead]


def _names(notes: list[Path]) -> str:
    texts = []
    for note in notes:
        with contextlib.suppress(OSError):  # it has ended
            since = time.strftime("%Y-%m-%d %H:%M", time.localtime(note.stat().st_mtime))
            process, _, host = note.name.partition("@")
            texts.append(f"process {process.partition('-')[0]} on {host}, since {since}")
    return " or ".join(texts)
