"""snakemake-logger-plugin-rich, but a running job moves its bar, and a failed one shows its
message, all logs and what the executor says."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from snakemake_logger_plugin_rich import LogHandler
from snakemake_logger_plugin_rich.event_handler import LogEvent, prettyprint_rule

from millrace.common import progress
from millrace.common.workflow.status import last_lines

_LOOK_SECONDS = 1.0


class _Job(NamedTuple):
    """A job that was started: what people read of it, its rule, its logs."""

    message: str
    rule: str
    logs: list[Path]

    def position(self) -> progress.Position | None:
        """How far the job's log says it is."""
        for log in self.logs:
            for line in reversed(last_lines(log)):
                position = progress.position(line)
                if position is not None:
                    return position
        return None


class ProgressBars(LogHandler):
    """A table of jobs, a bar a rule while they run, and the logs of those that fail."""

    def __post_init__(self) -> None:
        self.jobs: dict[int, _Job] = {}
        self.running: set[int] = set()
        super().__post_init__()
        threading.Thread(target=self._watch, daemon=True).start()

    # Records are logging.LogRecord, with what Snakemake adds to them.
    def emit(self, record: Any) -> None:
        event = getattr(record, "event", None)
        if event == LogEvent.JOB_INFO:
            logs = [Path(log) for log in record.log or ()]
            self.jobs[record.jobid] = _Job(record.rule_msg or "", record.rule_name, logs)
            self.running.add(record.jobid)
        elif event == LogEvent.JOB_FINISHED:
            self.running.discard(record.job_id)
        elif event == LogEvent.JOB_ERROR:
            self.running.discard(record.jobid)
            self._show_failed(record)
            return
        # Its command and exit code only, above the log that says why.
        if not record.getMessage().startswith("RuleException:\nCalledProcessError"):
            super().emit(record)

    def _watch(self) -> None:
        """Move the bars of running jobs, as long as Snakemake lives."""
        while True:
            time.sleep(_LOOK_SECONDS)
            for rule, positions in self._positions():
                self._move(rule, positions)

    def _positions(self) -> Iterator[tuple[str, list[progress.Position]]]:
        """How far the running jobs of each rule are, of those that say so."""
        by_rule: dict[str, list[progress.Position]] = {}
        for number in tuple(self.running):
            job = self.jobs[number]
            position = job.position()
            if position is not None:
                by_rule.setdefault(job.rule, []).append(position)
        yield from by_rule.items()

    def _move(self, rule: str, positions: list[progress.Position]) -> None:
        """Show the finished jobs of a rule and the shares of those that run."""
        handler = self.event_handler
        task = handler.progress_display.rule_tasks.get(rule)
        counts = handler.rule_counts.get(rule)
        if task is None or counts is None:
            return
        done = counts["completed"] + sum(position.share for position in positions)
        words = positions[0].text if len(positions) == 1 else f"{len(positions)} jobs"
        description = f"{prettyprint_rule(rule)}: {words}"
        handler.progress.update(task, completed=done, description=description)

    def _show_failed(self, record: Any) -> None:
        # The plugin reads the rule's own log, which a job that never started has not written, and
        # leaves out what the executor says (on Slurm: a time limit, a lost node).
        job = self.jobs.get(record.jobid)
        message = job.message if job else ""
        lines = [f"✗ Failed: {message} ({record.rule_name})", *filter(None, [record.rule_msg])]
        for path in map(Path, record.log):
            lines.append(f"── {path}" if path.is_file() else f"── {path} was not written")
            lines += path.read_text(errors="replace").splitlines() if path.is_file() else []
        self.console.print(
            "\n".join(lines), style="yellow", markup=False, highlight=False, soft_wrap=True
        )
