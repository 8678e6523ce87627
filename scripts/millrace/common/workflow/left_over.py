"""What a killed run has left: jobs in Slurm's queue, and processes of its steps on this host.

They go on without their Snakemake. A run that starts beside them would run their steps twice at
once, so it is refused while they live.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
from collections import Counter
from collections.abc import Callable, Iterable
from typing import NamedTuple

import psutil

from millrace.common.errors import MillraceError
from millrace.common.workflow import run_lock
from millrace.common.workflow.snakemake_state import is_locked

# Names the run in the environment of its local steps. Steps in Slurm's jobs have none: the queue
# lists them.
MARK = "MILLRACE_RUN"
# A run's jobs have one name, [<slurm-jobname-prefix>_]<uuid>, and the comment
# rule_<rule>[_wildcards_<...>].
_RUN = re.compile(r"([\w-]+_)?[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class Job(NamedTuple):
    """One of this folder's jobs in Slurm's queue; `run` is the name that all jobs of its run
    have."""

    run: str
    state: str
    step: str


class Step(NamedTuple):
    """A process of a step whose run was killed."""

    pid: int
    parent: int
    step: str = ""


def jobs() -> list[Job]:
    """The jobs of this folder in Slurm's queue; none where there is no Slurm."""
    command = ["squeue", "--me", "--noheader", "--format=%j|%T|%k|%Z"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    except FileNotFoundError:
        return []
    except (OSError, subprocess.SubprocessError) as error:
        text = getattr(error, "stderr", None) or str(error)
        cause = " ".join(text.split())
        remedy = "It must say whether jobs of a killed run are left; try again when it answers"
        raise MillraceError(f"squeue failed: {cause}", remedy=remedy) from None
    found = []
    for line in done.stdout.splitlines():
        if line.count("|") < 3:
            continue
        name, state, comment, folder = line.split("|", 3)
        if _RUN.fullmatch(name) and os.path.realpath(folder) == os.getcwd():
            step = comment.removeprefix("rule_").partition("_wildcards_")[0]
            found.append(Job(name, state.lower(), step))
    return found


def steps() -> list[Step]:
    """The processes in this folder that bear the mark of a run that is dead."""
    alive = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):  # it has ended, or is another user's
            run = process.environ().get(MARK)
            if run is None or process.cwd() != os.getcwd() or not run_lock.is_dead(run):
                continue
            command = " ".join(process.cmdline())
            modules = re.findall(r"\bmillrace\.(\w+)\.(\w+)\b", command)[-1:]
            names = map("_".join, modules)
            alive.append(Step(process.pid, process.ppid(), *names))
    return sorted(alive)


def describe(processes: list[Step], queue: list[Job]) -> list[str]:
    """What is left of a killed run, and how it ends."""
    lines = []
    if processes:
        known = {process.step for process in processes} - {""}
        names = ", ".join(sorted(known)) or "unknown"
        pids = {process.pid for process in processes}
        first = " ".join(str(process.pid) for process in processes if process.parent not in pids)
        problem = f"steps of a killed run go on here: {names}"
        lines.append(f"{problem}. Wait for them, or have them save and end: `kill {first}`")
    if queue:
        states = _tally(job.state for job in queue)
        names = _tally(job.step for job in queue)
        runs = sorted({job.run for job in queue})
        cancel = "; ".join(f"scancel --name={run}" for run in runs)
        problem = f"Slurm jobs of a killed run go on: {states} ({names})"
        lines.append(f"{problem}. Wait for them, as what they finish counts, or type `{cancel}`")
    return lines


def _tally(words: Iterable[str]) -> str:
    return ", ".join(f"{count} {word}" for word, count in Counter(words).most_common())


def check(say: Callable[[str], None], acts: bool, on_cluster: bool, unlock: str) -> str:
    """Say what a killed run has left, with its lock, which the command `unlock` removes; "" if
    there is nothing.

    Raises MillraceError if this run `acts` beside it: Snakemake itself refuses only while the lock
    is there.
    """
    locked = is_locked()
    killed = run_lock.stale()  # without a lock it lets go of what dead runs noted
    if locked and not killed:
        return ""
    if beside := run_lock.beside():
        line = f"{beside}. Wait until it has ended, or stop it with Ctrl-C there"
        if acts:
            raise MillraceError(line)
        say(f"{line}. The partitions are shown as it found them")
        return line
    lines = describe(steps(), _queue(say, acts, on_cluster))
    if locked:
        lines = [". ".join([killed, *lines, run_lock.remedy(unlock)])]
    elif lines and acts:
        raise MillraceError(" ".join(lines))
    if not acts:
        for line in lines:
            say(line)
    return " ".join(lines)


def _queue(say: Callable[[str], None], acts: bool, on_cluster: bool) -> list[Job]:
    """The Slurm jobs of a killed run; where Slurm does not answer, a run that needs none of it goes
    on."""
    # Not where squeue may be installed, but was never used.
    if not on_cluster and not os.path.isdir("logs/slurm"):
        return []
    try:
        return jobs()
    except MillraceError as error:
        if on_cluster and acts:
            raise
        say(str(error))
        return []
