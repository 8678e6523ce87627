"""Bars on a terminal move while a job runs, by what its log says."""

from __future__ import annotations

import logging
import sys
import time
from types import SimpleNamespace

import pytest

pytest.importorskip("snakemake_logger_plugin_rich")
from snakemake_interface_logger_plugins.common import LogEvent

from millrace.common.workflow import progress_bars, terminal
from millrace.common.workflow.progress_bars import ProgressBars

SETTINGS = SimpleNamespace(
    printshellcmds=False,
    nocolor=False,
    quiet=None,
    debug_dag=False,
    verbose=False,
    show_failed_logs=False,
    stdout=False,
    dryrun=False,
)


def record(event: LogEvent, **values: object) -> logging.LogRecord:
    record = logging.LogRecord("snakemake", logging.INFO, "", 0, "", None, None)
    vars(record).update(event=event, **values)
    return record


def task(bars: ProgressBars):
    handler = bars.event_handler
    return handler.progress.tasks[handler.progress_display.rule_tasks["music_fetch_demo"]]


def wait_for(bars: ProgressBars, words: str, completed: float) -> None:
    """Until the bar says so."""
    expected = (f"music fetch demo: {words}", completed)
    end = time.monotonic() + 30
    while (task(bars).description, task(bars).completed) != expected and time.monotonic() < end:
        time.sleep(0.01)
    assert (task(bars).description, task(bars).completed) == expected


def test_a_bar_moves_while_its_job_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(progress_bars, "_LOOK_SECONDS", 0.01)
    log = tmp_path / "demo.log"
    bars = ProgressBars(SETTINGS, None)
    try:
        stats = {"music_fetch_demo": 2, "total": 2}
        bars.emit(record(LogEvent.RUN_INFO, stats=stats))
        job = {"jobid": 1, "rule_name": "music_fetch_demo", "rule_msg": "Fetch", "log": [log]}
        bars.emit(record(LogEvent.JOB_INFO, **job))
        log.write_text("10:00:01 INFO demo corpus: 30 of 40 tunes (75 %), 0:00:10 left\nnext\n")
        wait_for(bars, "30 of 40 tunes", 0.75)

        bars.emit(record(LogEvent.JOB_INFO, **job | {"jobid": 2}))
        wait_for(bars, "2 jobs", 1.5)

        bars.emit(record(LogEvent.JOB_FINISHED, job_id=1))
        wait_for(bars, "30 of 40 tunes", 1.75)  # the log of a job that has ended counts no more
        failed = {"jobid": 2, "rule_name": "music_fetch_demo", "rule_msg": "lost", "log": [log]}
        with bars.console.capture() as shown:
            bars.emit(record(LogEvent.JOB_ERROR, **failed | {"log": [log, tmp_path / "none"]}))
        text = shown.get()
        assert text.startswith("✗ Failed: Fetch (music_fetch_demo)\nlost\n")
        assert "30 of 40 tunes" in text and text.endswith(f"{tmp_path}/none was not written\n")
        assert bars.running == set()
        # The log above says why, not that a command has failed.
        messages = {"RuleException:\nCalledProcessError in line 1": False, "x": True}
        for message, is_shown in messages.items():
            error = logging.LogRecord("snakemake", logging.ERROR, "", 0, message, None, None)
            with bars.console.capture() as shown:
                bars.emit(error)
            assert bool(shown.get()) == is_shown
    finally:
        bars.close()


@pytest.mark.parametrize(
    "terminals, choices, has_bars",
    [
        (["stderr"], {}, True),
        (["stdout"], {}, False),
        (["stderr"], {"stdout": True}, False),
        (["stderr", "stdout"], {"stdout": True}, True),
        (["stderr"], {"printshellcmds": True}, False),
        (["stderr"], {"debug_dag": True}, False),
        (["stderr"], {"quiet": {"rules"}}, False),
        (["stderr"], {"nocolor": True}, False),
        (["stderr"], {"log_handler_settings": {"rich": None}}, False),
        (["stderr"], {"skip_plugin_handlers": True}, False),
    ],
)
def test_bars_replace_plain_text_where_all_of_it_goes_to_a_terminal_and_nobody_asks_for_text(
    monkeypatch, terminals, choices, has_bars
):
    for name in ("stdout", "stderr"):
        is_one = name in terminals
        monkeypatch.setattr(sys, name, SimpleNamespace(isatty=lambda is_one=is_one: is_one))
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(progress_bars, "ProgressBars", lambda *_: logging.NullHandler())
    plain = logging.NullHandler()
    plain.name = "DefaultStreamHandler"
    log_file = logging.NullHandler()
    logger = logging.Logger("snakemake")
    logger.handlers = [plain, log_file]
    settings = vars(SETTINGS) | {"log_handler_settings": {}, "skip_plugin_handlers": False}
    terminal.use_progress_bars(
        SimpleNamespace(settings=SimpleNamespace(**settings | choices), logger=logger)
    )
    assert (plain in logger.handlers) != has_bars
    assert log_file in logger.handlers and len(logger.handlers) == 2
