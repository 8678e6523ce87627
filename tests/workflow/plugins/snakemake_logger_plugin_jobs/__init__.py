"""Snakemake's `--logger jobs`: every job as a line of JSON, for tests that read a dry run."""

from __future__ import annotations

import json
import logging

from snakemake_interface_logger_plugins.base import LogHandlerBase
from snakemake_interface_logger_plugins.common import LogEvent


class LogHandler(LogHandlerBase, logging.Handler):
    writes_to_stream, needs_rulegraph = True, False
    writes_to_file, has_filter, has_formatter = False, True, True

    def __post_init__(self) -> None:
        logging.Handler.__init__(self)

    def emit(self, record: logging.LogRecord) -> None:
        if getattr(record, "event", None) == LogEvent.JOB_INFO:
            texts = {
                name: ", ".join(getattr(record, name) or ()) for name in ("input", "output", "log")
            }
            wildcards = ", ".join(f"{name}={value}" for name, value in record.wildcards.items())
            line = {
                "rule": record.rule_name,
                "wildcards": wildcards,
                "reason": record.reason,
                **texts,
            }
            line |= {"message": record.rule_msg or "", "command": record.shellcmd or ""}
            print(json.dumps(line), flush=True)
        elif record.levelno >= logging.ERROR:
            print(record.getMessage(), flush=True)
