"""Where a workflow stands, and how a run ended: which jobs count as done, pending, running or
failed, by the files that steps and Snakemake leave behind."""

from __future__ import annotations

import atexit
import importlib
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from millrace.common import progress
from millrace.common.errors import MillraceError, printable
from millrace.common.workflow import run_lock, snakemake_state, sources
from millrace.common.workflow.config import LANE_NAMES

_STATES = ("done", "pending", "running", "failed")
_STAMP = re.compile(r"\d\d:\d\d:\d\d (\w+) ")  # time and level, before what a step says
# Seconds that a job may be silent and still count as running; the jobs of a killed run may well go
# on.
_PATIENCE = {"going on": 3600.0, "killed": 60.0}
_TAIL_BYTES = 20_000
# So many jobs of a state are named on the screen.
_NAMED = 5


class Job(NamedTuple):
    """A job, its state, and when its log was written to."""

    lane: str
    step: str
    name: str
    state: str
    log: str
    written: float

    def last_words(self) -> str:
        """How far a running job is, the error of one that has failed; else the last line of its
        log."""
        lines = last_lines(self.log)
        for line in reversed(lines):
            stamp = _STAMP.match(line)
            if self.state == "running" and (known := progress.position(line)):
                return known.line
            if self.state == "failed" and stamp and stamp[1] == "ERROR":
                return line[stamp.end() :]
        last = "nothing in the log"
        if lines:
            last = _STAMP.sub("", lines[-1].strip())
        if self.state == "running":
            return last
        return f"ended without an error message; last line: {last}"


class Run(NamedTuple):
    """The last run that had jobs: "going on", "succeeded", "failed" or "killed"; "" for none."""

    state: str = ""
    started: float = 0.0
    log: snakemake_state.RunLog | None = None


def last_run() -> Run:
    """The newest run of the current folder that had jobs."""
    log = snakemake_state.last_log()
    if log is None:
        return Run()
    if log.has_ended:  # whoever holds the lock
        state = "succeeded" if log.done == log.total else "failed"
    elif snakemake_state.is_locked():
        state = "killed" if run_lock.stale() else "going on"
    else:
        state = "going on" if run_lock.beside() else "killed"
    return Run(state, log.started, log)


def last_lines(log: str | os.PathLike) -> list[str]:
    """The last lines of a log that are not blank; none of one that has not begun."""
    try:
        with open(log, "rb") as handle:
            handle.seek(max(handle.seek(0, 2) - _TAIL_BYTES, 0))
            text = handle.read().decode(errors="replace")
    except OSError:
        return []
    return [line for line in text.splitlines() if line.strip()]


def mtime(path: str | os.PathLike) -> float:
    """When the file was written, 0 if it is missing."""
    try:
        return os.stat(path).st_mtime
    except OSError:
        return 0.0


def of_lane(lane: str) -> Any:
    """The lane's status.py: `pages()`; `steps()`: name, output with {} for a job's name, sources of
    each job or None, if those jobs are known that have begun; `facts()`: what there is to say of a
    file, by path."""
    return importlib.import_module(f"millrace.{lane}.status")


def partition_files(lane: str) -> dict[str, list[str]]:
    """The partition files of the last parse, by group."""
    folder = f"results/{lane}/partitions"
    groups = sources.load(folder).partitions
    return {group: [f"{folder}/{name}.json" for name in names] for group, names in groups.items()}


def by_partition(groups: Mapping[str, list[str]]) -> dict[str, list[str]]:
    """The file that the job of each partition is made of, by its id."""
    return {Path(file).stem: [file] for files in groups.values() for file in files}


def jobs_of(lane: str, run: Run, now: float) -> Iterator[Job]:
    """The jobs of a lane, in the order of its steps; `now` is in seconds since 1970.

    A job is done if its output is newer than its sources, and without Snakemake's mark of what is
    unfinished. It runs if there is that mark, and its log goes on. It has failed if its log is
    newer than its sources and its benchmark, which Snakemake writes after a success.
    """
    marks = snakemake_state.unfinished()
    for step, output, jobs in of_lane(lane).steps():
        begun: dict[str, list[str]] = {}
        if jobs is None:
            begun = {log.stem: [] for log in Path(f"logs/{lane}/{step}").glob("*.log")}
        for name, inputs in (jobs or begun).items():
            log = f"logs/{lane}/{step}/{name}.log"
            path = output.replace("{}", name)
            written = mtime(log)
            mark = marks.get(path, 0.0)
            newest = max(map(mtime, inputs), default=0.0)
            goes_on = now - written < _PATIENCE.get(run.state, 0.0)
            state = "pending"
            if written >= mark > run.started - 2 and mark and goes_on:
                state = "running"
            elif not mark and mtime(path) >= max(newest, 1.0):
                state = "done"
            elif written > max(newest, mtime(f"benchmarks/{lane}/{step}/{name}.tsv")):
                state = "failed"
            yield Job(lane, step, name, state, log, written)


def screen(now: float) -> list[str]:
    """The lines of `millrace status`, for the workflow in the current folder. Nothing is
    written."""
    run = last_run()
    lines = _run_lines(run, now)
    for lane in LANE_NAMES:
        if Path("logs", lane).is_dir() or Path("results", lane).is_dir():
            lines += ["", *_lane_lines(lane, run, now)]
    return lines


def _run_lines(run: Run, now: float) -> list[str]:
    log = run.log
    if log is None:
        return [f"no run in {os.getcwd()} yet"]
    begun = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(run.started))
    end = now if run.state == "going on" else log.written
    seconds = progress.clock(end - run.started)
    steps = f"{log.done} of {log.total} steps"
    return [f"run of {begun} {run.state}, {seconds}, {steps} done", f"  log: {log.path}"]


def _lane_lines(lane: str, run: Run, now: float) -> list[str]:
    """Facts of a lane, a table of its steps, and the jobs that run or have failed."""
    lines = [lane, *(f"  {fact}" for fact in of_lane(lane).facts().values())]

    jobs = list(jobs_of(lane, run, now))
    lines.append(_row("", _STATES))
    counts = Counter((job.step, job.state) for job in jobs)
    for step in dict.fromkeys(job.step for job in jobs):
        lines.append(_row(step, [counts[step, state] or "-" for state in _STATES]))

    jobs.sort(key=lambda job: -job.written)
    for state in ("running", "failed"):
        listed = [job for job in jobs if job.state == state]
        for job in listed[:_NAMED]:
            lines.append(f"  {job.state} {job.step} {job.name}: {job.last_words()}")
            lines.append(f"    log: {job.log}")
    return lines


def _row(step: str, cells: Iterable[object]) -> str:
    return f"  {step:<24}" + "".join(f"{cell:>9}" for cell in cells)


class Ended(NamedTuple):
    """A run that has ended: its lanes, when it began (seconds since 1970), Snakemake's logs, and
    the command that gathers its pages."""

    lanes: list[str]
    since: float
    failed: bool
    logs: list[str]
    report: str


def closing_lines(run: Ended) -> list[str]:
    """What a run has made, and its pages; or which of its jobs failed, and why."""
    if run.failed:
        texts = _failures(run.lanes, run.since) or [f"no step says why, see {' '.join(run.logs)}"]
        return [f"failed: {text}" for text in texts]
    lines = []
    pages = []
    for lane in run.lanes:
        module = of_lane(lane)
        facts = module.facts().items()
        lines += [f"{lane}: {fact}" for path, fact in facts if mtime(path) >= run.since]
        pages += [page for page in module.pages() if mtime(page) >= run.since]
    lines += [f"open {os.path.abspath(page)}" for page in pages]
    if pages:
        lines.append(f"all pages in one: {run.report}")
    return lines


def _failures(lanes: Iterable[str], since: float) -> list[str]:
    """The jobs that have failed, ten of them by name."""
    run = Run("failed")
    now = time.time()
    jobs = [job for lane in lanes for job in jobs_of(lane, run, now)]
    jobs = [job for job in jobs if job.state == "failed" and job.written >= since]
    texts = [
        f"{job.lane}_{job.step} {job.name}: {job.last_words()} (log: {job.log})"
        for job in jobs[:10]
    ]
    if len(jobs) > 10:
        texts.append(f"{len(jobs) - 10} more jobs")
    return texts


def say_last(run: Ended) -> None:
    """Print the closing lines when Python ends, after Snakemake's own; they never fail a run."""
    try:
        text = "".join(f"Millrace: {line}\n" for line in closing_lines(run))
    except (MillraceError, OSError, LookupError, TypeError, ValueError) as error:
        text = f"Millrace: no summary of the run: {error}\n"
    atexit.register(lambda: (sys.stderr.write(printable(text)), sys.stderr.flush()))
