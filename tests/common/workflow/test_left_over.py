"""While steps or Slurm jobs of a run that was killed go on, the next run is refused."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from functools import partial
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
# Its command names the launcher of ranks first, as a training step's does.
STEP = """
# -m millrace.common.training.launch --standalone -m millrace.asr.train_model
import time
open("ready", "w")
time.sleep(1000)
"""
UNLOCK = "snakemake --unlock"
check = partial(left_over.check, unlock=UNLOCK)
UUID = "00000000-1111-2222-3333-444444444444"
FIRST, SECOND = f"millrace_{UUID}", f"my-2nd_run_{UUID}"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CLONE", str(Path(left_over.__file__).parents[4]))


def begin(step: str, end: str = "killed") -> subprocess.Popen:
    return subprocess.Popen([sys.executable, "-c", RUN, step, end], stdin=subprocess.PIPE)


def end(steps: list[left_over.Step]) -> None:
    for step in steps:
        os.kill(step.pid, signal.SIGKILL)


def test_a_run_is_refused_while_steps_of_a_killed_one_go_on_and_a_dry_run_says_so():
    begin(STEP).wait()
    while len(steps := left_over.steps()) != 2:
        time.sleep(0.01)
    said: list[str] = []
    line = check(said.append, acts=False, on_cluster=False)
    pids = " ".join(str(step.pid) for step in steps)
    assert said == [line] and f"have them save and end: `kill {pids}`" in line
    with pytest.raises(MillraceError, match=r"killed run go on here: asr_train_model\. Wait"):
        check(said.append, acts=True, on_cluster=False)
    end(steps)
    while left_over.steps():
        time.sleep(0.01)
    assert not check(said.append, acts=True, on_cluster=False)
    assert not list(run_lock.NOTES.iterdir())  # or the next lock would be said to be the dead's


def test_steps_of_a_living_run_of_another_folder_or_behind_a_lock_are_let_alone(
    tmp_path: Path, monkeypatch
):
    living = begin(STEP, "lives")
    while not os.path.exists("ready") and living.poll() is None:
        time.sleep(0.01)
    assert left_over.steps() == []
    # Its lock went with a run that ended beside it.
    said: list[str] = []
    with pytest.raises(MillraceError, match=rf"another run goes on here \(process {living.pid} "):
        check(said.append, acts=True, on_cluster=False)
    assert check(said.append, acts=False, on_cluster=False) == said[0].partition(". The")[0]
    living.kill()
    living.wait()
    alive = left_over.steps()
    locks = Path(".snakemake/locks")
    locks.mkdir(parents=True)
    (locks / "0.output.lock").write_text("results/x\n")
    said = []
    line = check(said.append, acts=True, on_cluster=False)
    assert left_over.steps() == alive and not said
    assert line.startswith("the workflow is locked by a run that was killed (process ")
    assert "steps of a killed run go on here: " in line
    assert line.endswith(run_lock.remedy(UNLOCK))
    # A dry run has no error that would say it.
    assert check(said.append, acts=False, on_cluster=False) == line and said == [line]
    other = "snakemake -s ../Snakefile --unlock"
    line = check(said.append, acts=True, on_cluster=False, unlock=other)
    assert line.endswith(run_lock.remedy(other))
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    assert left_over.steps() == []
    monkeypatch.chdir(tmp_path)
    end(alive)


def queue(monkeypatch: pytest.MonkeyPatch, *answers: str) -> None:
    """A Slurm whose queue gives these answers, one after the other."""
    for number, answer in enumerate(answers):
        Path(f"answer{number}").write_text(answer)
    count = "n=$(ls asked* 2>/dev/null | wc -l); touch asked$n"
    # Other people's jobs are none of ours.
    mine = 'case "$*" in *--me*) ;; *) exit 1;; esac'
    script = f"#!/bin/sh\n{mine}; {count}; cat answer$n; ! grep error answer$n >&2\n"
    Path("bin").mkdir()
    Path("bin/squeue").write_text(script)
    Path("bin/squeue").chmod(0o755)
    monkeypatch.setenv("PATH", f"{Path('bin').absolute()}:{os.environ['PATH']}")


def row(run: str, state: str, step: str, folder: str = "") -> str:
    return f"{run}|{state}|rule_{step}_wildcards_x|{folder or os.getcwd()}\n"


def test_a_run_is_refused_while_the_queue_has_jobs_of_this_folder(monkeypatch):
    others = "a line of the site\n"
    others += row("my_job", "RUNNING", "a") + row(FIRST, "RUNNING", "a", "/elsewhere")
    others += row(f"{FIRST}_of_mine", "RUNNING", "a")
    ours = row(FIRST, "RUNNING", "speech_a") + row(SECOND, "PENDING", "speech_b")
    queue(monkeypatch, others + ours, others + ours, others)
    said: list[str] = []
    line = check(said.append, acts=False, on_cluster=True)
    go_on = "Slurm jobs of a killed run go on: 1 running, 1 pending (1 speech_a, 1 speech_b). Wait"
    assert said == [line] and line.startswith(go_on)
    assert line.endswith(f"`scancel --name={FIRST}; scancel --name={SECOND}`")
    with pytest.raises(MillraceError, match="Slurm jobs of a killed run go on"):
        check(said.append, acts=True, on_cluster=True)
    assert not check(said.append, acts=True, on_cluster=True) and len(said) == 1


@pytest.mark.parametrize("name", ["a|b", "link"])
def test_jobs_are_known_by_their_folder_behind_a_link_or_with_a_bar_in_its_name(
    tmp_path: Path, monkeypatch, name
):
    (tmp_path / "a|b").mkdir()
    (tmp_path / "link").symlink_to("a|b")
    monkeypatch.chdir(tmp_path / "a|b")
    queue(monkeypatch, row(FIRST, "RUNNING", "speech_a", f"{tmp_path}/{name}"))
    assert left_over.jobs() == [left_over.Job(FIRST, "running", "speech_a")]


def test_a_process_of_no_step_beside_one_of_a_step_has_no_name():
    processes = [left_over.Step(8, 1), left_over.Step(9, 8, "asr_train_model")]
    (line,) = left_over.describe(processes, [])
    assert "go on here: asr_train_model. Wait" in line and line.endswith("`kill 8`")


def test_a_lock_that_no_dead_run_noted_is_left_to_snakemake():
    Path(".snakemake/locks").mkdir(parents=True)
    Path(".snakemake/locks/0.output.lock").touch()
    said: list[str] = []
    assert check(said.append, acts=False, on_cluster=False) == "" and not said


def test_a_run_without_slurm_looks_into_the_queue_where_there_was_slurm_before(monkeypatch):
    queue(monkeypatch, row(FIRST, "RUNNING", "speech_a"))
    assert not check(print, acts=True, on_cluster=False)
    os.makedirs("logs/slurm")
    with pytest.raises(MillraceError, match=r"1 running \(1 speech_a\)"):
        check(print, acts=True, on_cluster=False)


def test_a_queue_that_does_not_answer_stops_a_run_on_the_cluster_only(monkeypatch):
    queue(monkeypatch, *["error: no controller"] * 3)
    os.makedirs("logs/slurm")
    with pytest.raises(MillraceError, match="squeue failed: "):
        check(print, acts=True, on_cluster=True)
    said: list[str] = []
    assert not check(said.append, acts=False, on_cluster=True)
    assert not check(said.append, acts=True, on_cluster=False)
    assert len(said) == 2 and "squeue failed" in said[0]
    monkeypatch.setenv("PATH", "/nowhere")
    assert not check(said.append, acts=True, on_cluster=True)


def test_a_queue_that_hangs_is_waited_for_a_minute(monkeypatch):
    def run(command: list[str], timeout: float, **options: object) -> None:
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(left_over.subprocess, "run", run)
    with pytest.raises(MillraceError, match=r"squeue failed: .* timed out after 60 seconds"):
        check(print, acts=True, on_cluster=True)
