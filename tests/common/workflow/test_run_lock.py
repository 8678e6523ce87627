"""A lock that a dead run left behind is told apart from a living run's, and left to the user."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from millrace.common.workflow import run_lock

UNLOCK = "snakemake --unlock"
NOTED = "import os; from millrace.common.workflow import run_lock; run_lock.enter(); "


@pytest.fixture(autouse=True)
def locked(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path(".snakemake/locks").mkdir(parents=True)
    Path(".snakemake/locks", "0.output.lock").write_text("results/x\n")


def kill_a_run() -> int:
    """A process that notes itself and is killed, so that nothing of its own tidies up."""
    run = subprocess.Popen([sys.executable, "-c", NOTED + "os.kill(os.getpid(), 9)"])
    run.wait()
    return run.pid


def test_the_lock_of_a_killed_run_is_named_and_stays():
    pid = kill_a_run()
    assert f"process {pid}" in run_lock.stale()
    assert Path(".snakemake/locks/0.output.lock").exists()


@pytest.mark.parametrize("started", [0, 1])
def test_a_run_whose_number_another_process_has_now_is_dead(started):
    run_lock.NOTES.mkdir()
    (run_lock.NOTES / f"{os.getpid()}-{started}@{socket.gethostname()}").touch()
    assert f"process {os.getpid()}" in run_lock.stale()


def test_nothing_is_said_while_a_noted_run_lives_whoever_else_has_died():
    kill_a_run()
    run_lock.enter()
    assert run_lock.stale() == ""


def test_nothing_is_said_of_a_lock_that_nobody_noted_or_one_of_another_host():
    assert run_lock.stale() == ""
    kill_a_run()
    note = next(run_lock.NOTES.iterdir())
    note.rename(note.with_name(note.name.replace(socket.gethostname(), "elsewhere")))
    assert run_lock.stale() == ""


def test_neither_this_process_nor_a_note_of_another_host_is_a_run_beside():
    Path(".snakemake/locks/0.output.lock").unlink()
    run_lock.enter()
    (run_lock.NOTES / "12-345@elsewhere").touch()
    assert run_lock.beside() == ""


def test_notes_go_with_their_process_and_those_of_the_dead_once_there_is_no_lock():
    subprocess.run([sys.executable, "-c", NOTED], check=True)
    assert not list(run_lock.NOTES.iterdir())
    kill_a_run()
    Path(".snakemake/locks/0.output.lock").unlink()
    assert run_lock.stale() == "" and not list(run_lock.NOTES.iterdir())


def test_a_fork_of_a_run_leaves_its_note_and_nobody_is_locked_out_by_himself():
    forked = "child = os.fork() or os._exit(atexit._run_exitfuncs() or 0); os.waitpid(child, 0)"
    program = (
        f"import atexit; {NOTED}{forked}; print(len(list(run_lock.NOTES.iterdir())),"
        " run_lock.holder('x'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    assert done.stdout.startswith("1 the workflow is locked, by whom is unknown")


def test_a_folder_that_cannot_be_written_to_stops_no_parse():
    run_lock.NOTES.write_text("a file where the folder belongs")
    run_lock.enter()
    assert run_lock.stale() == ""


def test_the_holder_is_named_if_he_noted_himself_with_what_can_be_known_of_him():
    assert "by whom is unknown" in run_lock.holder(UNLOCK)
    run = subprocess.Popen([sys.executable, "-c", NOTED + "input()"], stdin=subprocess.PIPE)
    while not (run_lock.NOTES.is_dir() and list(run_lock.NOTES.iterdir())):
        assert run.poll() is None
    line = run_lock.holder(UNLOCK)
    assert (
        f"goes on (process {run.pid} on " in line and "Wait until it has ended, or stop it" in line
    )
    assert "unlock" not in line and "killed" not in line
    (run_lock.NOTES / "12-345@elsewhere").touch()
    assert "or stop it with Ctrl-C there" in run_lock.holder(UNLOCK)
    run.communicate()
    line = run_lock.holder(UNLOCK)
    assert "process 12 on elsewhere" in line and "or was killed" in line


def test_the_holder_is_told_with_the_command_that_unlocks_this_workflow():
    unlock = "snakemake -s ../Snakefile --unlock"
    assert run_lock.holder(unlock).endswith(run_lock.remedy(unlock))
    run_lock.NOTES.mkdir()
    (run_lock.NOTES / "12-345@elsewhere").touch()
    assert run_lock.holder(unlock).endswith(run_lock.remedy(unlock))


def test_a_file_among_the_notes_that_names_no_process_stops_nothing():
    run_lock.NOTES.mkdir()
    (run_lock.NOTES / f"x-1@{socket.gethostname()}").touch()
    assert run_lock.stale() == ""
    Path(".snakemake/locks/0.output.lock").unlink()
    assert run_lock.beside() == ""
