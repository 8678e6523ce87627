"""Locks of dead runs are removed, those of living ones are not; and a run that is told to stop stops."""

from __future__ import annotations

import importlib.util
import os
import signal
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from millrace.common import jsonl
from millrace.common.workflow import run_lock
from tests.workflow.workflow import ROOT


@pytest.fixture(autouse=True)
def locked(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_lock.LOCKS.mkdir(parents=True)
    (run_lock.LOCKS / "0.output.lock").write_text("results/x\n")


def other(code: str = "") -> None:
    """A process that notes itself, runs `code` and is killed, so that nothing of its own tidies up."""
    text = f"import os, signal\nfrom millrace.common.workflow import run_lock\nrun_lock.enter()\n{code}\nos.kill(os.getpid(), 9)"
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}/scripts:{ROOT}"}
    assert (
        subprocess.run([sys.executable, "-c", text], check=False, env=environment).returncode
        == -signal.SIGKILL
    )


@pytest.mark.parametrize("code", ["", "run_lock.begin(local=True)"])
def test_the_lock_of_a_run_that_was_killed_is_removed_also_before_its_first_job(code):
    other(code)
    assert run_lock.clear_stale().startswith("removed the lock of a run that was killed (process ")
    assert not run_lock.is_held() and not list(run_lock.NOTES.iterdir())


def test_the_lock_of_a_living_run_stays_whoever_else_has_died():
    other()
    run_lock.enter()
    assert run_lock.clear_stale() == "" and run_lock.is_held()


def test_a_lock_that_nobody_noted_and_one_of_another_host_stay():
    assert run_lock.clear_stale() == ""
    other()
    note = next(run_lock.NOTES.iterdir())
    note.write_text(note.read_text().replace(socket.gethostname(), "elsewhere"))
    assert run_lock.clear_stale() == "" and run_lock.is_held()


def test_the_lock_of_a_dead_cluster_run_is_left_to_the_user():
    other("run_lock.begin(local=False)")
    assert "its cluster jobs may be alive" in run_lock.clear_stale() and run_lock.is_held()


def test_what_the_dead_noted_is_forgotten_with_their_lock():
    """Else the note of a cluster run, unlocked by hand, would stand in the way of the next run's."""
    other("run_lock.begin(local=False)")
    (run_lock.LOCKS / "0.output.lock").unlink()
    assert run_lock.clear_stale() == "" and not list(run_lock.NOTES.iterdir())


def test_damaged_notes_stop_nobody():
    run_lock.NOTES.mkdir()
    (run_lock.NOTES / "a.json").write_text("{")
    (run_lock.NOTES / "b.json").write_text("[]")
    assert run_lock.clear_stale() == "" and run_lock.is_held()


def test_a_note_says_who_and_goes_with_its_process():
    code = "from millrace.common.workflow import run_lock; run_lock.enter(); run_lock.begin(True); print(*run_lock.NOTES.iterdir())"
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}/scripts:{ROOT}"}
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, env=environment, capture_output=True, text=True
    )
    assert socket.gethostname()[:3] in done.stdout and not list(run_lock.NOTES.iterdir())
    run_lock.enter()
    assert jsonl.read(next(run_lock.NOTES.iterdir()))["pid"] == os.getpid()


def test_a_folder_that_cannot_be_written_to_stops_no_parse(tmp_path):
    run_lock.NOTES.write_text("a file where the folder belongs")
    run_lock.enter()
    assert run_lock.clear_stale() == ""


def test_sigterm_does_not_hang_a_thread_that_holds_what_the_handler_waits_for(tmp_path):
    """Snakemake's scheduler and its handler, in short."""
    script = tmp_path / "scheduler.py"
    script.write_text(
        textwrap.dedent("""
            import os, signal, threading
            from millrace.common.workflow import run_lock

            lock, stopped = threading.Lock(), threading.Event()

            def exit_gracefully(*args):
                with lock:
                    stopped.set()

            signal.signal(signal.SIGTERM, exit_gracefully)
            run_lock.begin(local=True)
            with lock:
                os.kill(os.getpid(), signal.SIGTERM)
            stopped.wait(20)
            print(stopped.is_set())
        """)
    )
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}/scripts:{ROOT}"}
    done = subprocess.run(
        [sys.executable, str(script)], check=True, env=environment, capture_output=True, text=True, timeout=30
    )
    assert done.stdout.strip() == "True"


def test_the_scheduler_has_its_handler_before_onstart():
    """What `begin` relies on: a new Snakemake that sets it later would hang again."""
    package = Path(importlib.util.find_spec("snakemake").origin).parent
    text = (package / "workflow.py").read_text()
    assert text.index("JobScheduler(\n") < text.index("self._onstart(")
    text = (package / "scheduling/job_scheduler.py").read_text()
    assert "signal.signal(signal.SIGTERM, self.exit_gracefully)" in text
