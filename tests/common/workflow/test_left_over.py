"""Steps of a run that was killed are ended in order before the next one; its Slurm jobs are waited
for."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from millrace.common.errors import MillraceError
from millrace.common.workflow import left_over, run_lock

# A run whose step is a pipe of two processes, in the shell that Snakemake would start.
RUN = """
import os, subprocess, sys, time
from millrace.common.workflow import lanes
no_lanes = lanes.Lanes({"lanes": []}, os.environ["CLONE"], is_main_process=True)
prefix = no_lanes.shell_prefix("set()").format()
command = f"{prefix}{sys.executable} -c '{sys.argv[1]}' | sleep 1000"
shell = ["bash", "-c", f"set -euo pipefail; {command}"]
step = subprocess.Popen(shell, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
while not os.path.exists("ready") and step.poll() is None:
    time.sleep(0.01)
if sys.argv[2] == "killed":
    os.kill(os.getpid(), 9)
sys.stdin.read()
"""
SAVES = """
import signal, sys, time
def save(*_): open("saved", "w"); sys.exit()
signal.signal(signal.SIGTERM, save)
open("ready", "w")
time.sleep(1000)
"""
# Has a process of its own, which it needs to save.
FORKS = """
import os, signal, time
first = os.getpid()
def asked(*_): open("first" if os.getpid() == first else "second", "a").write("x")
signal.signal(signal.SIGTERM, asked)
second = os.fork()
while not second: time.sleep(1)
open("ready", "w")
while not os.path.exists("first"): time.sleep(0.01)
time.sleep(0.5)
os.kill(second, 9)
"""
DEAF = SAVES.replace("save)", "signal.SIG_IGN)")
FIRST, SECOND = (f"millrace_0000000{number}-1111-2222-3333-444444444444" for number in (1, 2))


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CLONE", str(Path(left_over.__file__).parents[4]))
    monkeypatch.setattr(left_over, "PAUSE", 0.1)


def begin(step: str, end: str = "killed") -> subprocess.Popen:
    return subprocess.Popen([sys.executable, "-c", RUN, step, end], stdin=subprocess.PIPE)


@pytest.mark.parametrize(("step", "saved"), [(SAVES, True), (DEAF, False)])
def test_steps_of_a_killed_run_may_save_and_are_killed_if_they_do_not_end(step, saved, monkeypatch):
    monkeypatch.setattr(left_over, "PATIENCE", 60.0 if saved else 0.3)
    begin(step).wait()
    said: list[str] = []
    assert (
        left_over.settle(said.append, acts=False, on_cluster=False)
        and "The next run ends them" in said[0]
    )
    assert len(left_over.steps()) == 2
    assert (
        not left_over.settle(said.append, acts=True, on_cluster=False)
        and "This run ends them" in said[1]
    )
    assert left_over.steps() == [] and os.path.exists("saved") == saved


def test_a_step_is_asked_once_to_end_and_what_it_has_started_is_its_own_affair():
    begin(FORKS).wait()
    assert not left_over.settle(print, acts=True, on_cluster=False) and left_over.steps() == []
    assert Path("first").read_text() == "x" and not Path("second").exists()


def test_steps_of_a_living_run_of_another_folder_or_behind_a_lock_are_let_alone(
    tmp_path: Path, monkeypatch
):
    living = begin(SAVES, "lives")
    while not os.path.exists("ready") and living.poll() is None:
        time.sleep(0.01)
    assert left_over.steps() == []
    living.kill()
    living.wait()
    alive = left_over.steps()
    locks = Path(".snakemake/locks")
    locks.mkdir(parents=True)
    (locks / "0.output.lock").write_text("results/x\n")
    said: list[str] = []
    line = left_over.settle(said.append, acts=True, on_cluster=False)
    assert left_over.steps() == alive and not said
    assert line.startswith("the workflow is locked by a run that was killed (process ")
    assert "steps of a killed run on this host: " in line and line.endswith(run_lock.UNLOCK)
    # A dry run has no error that would say it.
    assert left_over.settle(said.append, acts=False, on_cluster=False) == line and said == [line]
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    assert left_over.steps() == []
    monkeypatch.chdir(tmp_path)
    left_over.end(alive)


def queue(monkeypatch: pytest.MonkeyPatch, *answers: str) -> None:
    """A Slurm whose queue gives these answers, one after the other."""
    for number, answer in enumerate(answers):
        Path(f"answer{number}").write_text(answer)
    count = "n=$(ls asked* 2>/dev/null | wc -l); touch asked$n"
    script = f"#!/bin/sh\n{count}; cat answer$n; ! grep error answer$n >&2\n"
    Path("bin").mkdir()
    Path("bin/squeue").write_text(script)
    Path("bin/squeue").chmod(0o755)
    monkeypatch.setenv("PATH", f"{Path('bin').absolute()}:{os.environ['PATH']}")


def row(run: str, state: str, step: str, folder: str = "") -> str:
    return f"{run}|{state}|rule_{step}_wildcards_x|{folder or os.getcwd()}\n"


def test_a_run_waits_until_the_queue_has_none_of_this_folders_jobs(monkeypatch):
    others = row("my_job", "RUNNING", "a") + row(FIRST, "RUNNING", "a", "/elsewhere")
    others += row(f"{FIRST}_of_mine", "RUNNING", "a")
    first = others + row(FIRST, "RUNNING", "speech_a") + row(SECOND, "PENDING", "speech_b")
    queue(
        monkeypatch,
        first,
        first,
        first,
        "error: try later",
        row(SECOND, "RUNNING", "speech_b"),
        others,
    )
    said: list[str] = []
    assert left_over.settle(said.append, acts=False, on_cluster=True)
    assert "The next run waits" in said.pop()
    assert not left_over.settle(said.append, acts=True, on_cluster=True)
    assert [line.partition(" waits")[0] for line in dict.fromkeys(said)] == [
        "Slurm jobs of a killed run: 1 running, 1 pending (1 speech_a, 1 speech_b). This run",
        "Slurm jobs of a killed run: 1 running (1 speech_b). This run",
    ]
    assert said[0].endswith(f"`scancel --name={FIRST}; scancel --name={SECOND}`")


def test_a_run_without_slurm_waits_too_where_there_was_slurm_before(monkeypatch):
    queue(monkeypatch, row(FIRST, "RUNNING", "speech_a"), "")
    said: list[str] = []
    assert not left_over.settle(said.append, acts=True, on_cluster=False) and not said
    os.makedirs("logs/slurm")
    assert not left_over.settle(said.append, acts=True, on_cluster=False)
    assert len(said) == 1 and "1 running (1 speech_a). This run waits" in said[0]


def test_a_queue_that_does_not_answer_stops_a_run_on_the_cluster_only(monkeypatch):
    queue(monkeypatch, *["error: no controller"] * 3)
    os.makedirs("logs/slurm")
    with pytest.raises(MillraceError, match="squeue failed: "):
        left_over.settle(print, acts=True, on_cluster=True)
    said: list[str] = []
    assert (
        not left_over.settle(said.append, acts=False, on_cluster=True)
        and "squeue failed" in said[0]
    )
    assert not left_over.settle(said.append, acts=True, on_cluster=False) and len(said) == 1
    monkeypatch.setenv("PATH", "/nowhere")
    assert not left_over.settle(said.append, acts=True, on_cluster=True)
