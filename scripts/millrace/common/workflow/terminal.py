"""When Snakemake shows progress bars: where it writes to a terminal and nobody asks for commands or
quiet; plain text everywhere else."""

from __future__ import annotations

import os
import sys
from typing import Any

# Whoever asks for one of these gets plain text: the bars show no commands, and are never quiet.
_PLAIN = (
    "printshellcmds",
    "debug_dag",
    "quiet",
    "nocolor",
    "log_handler_settings",
    "skip_plugin_handlers",
)


def use_progress_bars(manager: Any) -> None:
    """Give Snakemake's LoggerManager progress bars, if it writes to a terminal and the plugin is
    installed.

    A profile's `logger: rich` would hold for files and pipes too, and fail where there is no such
    plugin.
    """
    settings = manager.settings
    streams = [sys.stderr]
    if settings.stdout:
        streams.append(sys.stdout)
    if any(getattr(settings, name) for name in _PLAIN):
        return
    if not all(stream.isatty() for stream in streams):
        return
    if os.environ.get("CI") or os.environ.get("TERM", "dumb") == "dumb":
        return
    try:
        from millrace.common.workflow.progress_bars import ProgressBars
    except ImportError:
        return
    for handler in [
        each for each in manager.logger.handlers if each.name == "DefaultStreamHandler"
    ]:
        manager.logger.removeHandler(handler)
    manager.logger.addHandler(ProgressBars(settings, None))
