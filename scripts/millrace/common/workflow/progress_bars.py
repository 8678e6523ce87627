"""snakemake-logger-plugin-rich, but a failed job shows its message, all logs and what the executor
says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from snakemake_logger_plugin_rich import LogHandler
from snakemake_logger_plugin_rich.event_handler import LogEvent


class ProgressBars(LogHandler):
    """A table of jobs, a bar a rule while they run, and the logs of those that fail."""

    def __post_init__(self) -> None:
        self.messages: dict[int, str] = {}
        super().__post_init__()

    # Records are logging.LogRecord, with what Snakemake adds to them.
    def emit(self, record: Any) -> None:
        event = getattr(record, "event", None)
        if event == LogEvent.JOB_INFO:
            self.messages[record.jobid] = record.rule_msg or ""
        if event == LogEvent.JOB_ERROR:
            self._show_failed(record)
        # Its command and exit code only, above the log that says why.
        elif not record.getMessage().startswith("RuleException:\nCalledProcessError"):
            super().emit(record)

    def _show_failed(self, record: Any) -> None:
        # The plugin reads the rule's own log, which a job that never started has not written, and
        # leaves out what the executor says (on Slurm: a time limit, a lost node).
        message = self.messages.get(record.jobid, "")
        lines = [f"✗ Failed: {message} ({record.rule_name})", *filter(None, [record.rule_msg])]
        for path in map(Path, record.log):
            lines.append(f"── {path}" if path.is_file() else f"── {path} was not written")
            lines += path.read_text(errors="replace").splitlines() if path.is_file() else []
        self.console.print(
            "\n".join(lines), style="yellow", markup=False, highlight=False, soft_wrap=True
        )
