"""Jobs are cancelled, nodes go down, Snakemake is killed: no output is lost, none is made twice at
once."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest

from tests import corpora
from tests.slurm.test_profile import OnCluster, jobs_as, needs_slurm
from tests.workflow.workflow import ROOT, Workflow

STEP = "speech_generate_manifest"
COMMAND = b"python\0-m\0millrace.speech.generate_manifest\0"
COUNTRIES = [f"land-{number}" for number in range(10)]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("corpus")
    corpora.make_corpus(root, dict.fromkeys(COUNTRIES, 1), seconds=10)
    return root


@pytest.fixture(scope="module")
def undisturbed(corpus, tmp_path_factory) -> dict[str, str]:
    workflow = Workflow(tmp_path_factory.mktemp("undisturbed"), **config(corpus, 10))
    workflow.run("speech_manifest", "--until", STEP)
    return digests(workflow)


def config(corpus: Path, countries: int) -> dict:
    section = {"countries_root": str(corpus), "countries": COUNTRIES[:countries]}
    return {"lanes": ["speech"], "speech": section | {"assignment_file": "a.jsonl"}}


def digests(workflow: Workflow) -> dict[str, str]:
    return {path: sha for path, (sha, _) in workflow.files("results/speech/manifest/**/*").items()}


class Start:
    """Snakemake in the background, and what it prints."""

    def __init__(self, workflow: Workflow) -> None:
        self.path = workflow.folder / f"start-{time.monotonic_ns()}.log"
        command = workflow.command("speech_manifest", "--until", STEP)
        with open(self.path, "wb") as file:
            self.process = subprocess.Popen(command, cwd=workflow.folder, stdout=file, stderr=file)

    def until(self, condition) -> None:
        """Wait until `condition(what it has printed)`."""
        end = time.monotonic() + 90
        while not condition(text := self.path.read_text()):
            assert time.monotonic() < end and self.process.poll() is None, text
            time.sleep(0.1)

    def succeeds(self) -> str:
        assert self.process.wait(120) == 0, self.path.read_text()
        return self.path.read_text()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def start():
    """`start(workflow)` is a Start that ends with the test."""
    starts = []
    yield lambda workflow: starts.append(Start(workflow)) or starts[-1]
    for each in starts:
        each.kill()


def on_cluster(folder: Path, corpus: Path, countries: int) -> OnCluster:
    os.symlink(ROOT / "slurm", folder / "slurm")
    workflow = OnCluster(folder, **config(corpus, countries))
    workflow.PLACE = (*OnCluster.PLACE, "--slurm-init-seconds-before-status-checks", "1")
    return workflow


class Record(NamedTuple):
    """What Slurm knows of a job."""

    job: str
    country: str
    state: str
    node: str
    reason: str


def records(folder, state="") -> list[Record]:
    """The jobs of a folder, ended ones too; those in a state."""
    rows = [line.split("|") for line in jobs_as("--sort=i", "--format=%i|%k|%T|%N|%r|%Z")]
    rows = [row for row in rows if row.pop() == str(folder) and state in ("", row[2])]
    return [Record(job, re.search(r"land-\d", comment)[0], *rest) for job, comment, *rest in rows]


def started(folder: Path, count: int) -> bool:
    """Whether so many jobs run, and say so: Slurm holds a job whose node goes down while it is
    launched."""
    logs = [path for path in folder.glob("logs/slurm/*/*/*.log") if path.stat().st_size]
    return len(records(folder, "RUNNING")) == count == len(logs)


def restarts() -> dict[str, int]:
    """How often Slurm has started a job again, of those that it did."""
    counts = (line.split() for line in jobs_as("--Format=JobID:20,RestartCnt:20"))
    return {job: int(count) for job, count in counts if count != "0"}


@needs_slurm
def test_cancelled_jobs_are_tried_again_and_those_of_a_lost_node_elsewhere(
    shared_slurm, start, corpus, undisturbed, tmp_path
):
    workflow = on_cluster(tmp_path, corpus, 7)
    run = start(workflow)
    run.until(lambda _: started(tmp_path, 7))
    jobs = records(tmp_path)
    lost, others = (
        [each for each in jobs if (each.node == "n1") == here] for here in (True, False)
    )
    cancelled = [lost.pop(), *others[:2]]
    ids = {each.job for each in lost}
    subprocess.check_call(["scancel", *(each.job for each in cancelled)])
    subprocess.check_call(["scontrol", "update", "nodename=n1", "state=down", "reason=test"])
    # Slurm lets the jobs of a lost node wait for two minutes; this node is back before.
    run.until(
        lambda _: ids == {each.job for each in records(tmp_path) if each.reason == "BeginTime"}
    )
    for job in ids:
        subprocess.check_call(
            ["scontrol", "update", f"jobid={job}", "excnodelist=n1", "starttime=now"]
        )
    run.succeeds()
    assert Counter(each[1:3] for each in records(tmp_path)) == Counter(
        [(each.country, "COMPLETED") for each in jobs]
        + [(each.country, "CANCELLED") for each in cancelled]
    )
    assert len(ids) > 1 and restarts() == dict.fromkeys(ids, 1)
    outputs = digests(workflow)
    assert outputs.items() <= undisturbed.items() and len(outputs) == 7 * len(undisturbed) // 10


@needs_slurm
def test_after_a_killed_snakemake_the_next_is_refused_until_its_jobs_have_ended(
    shared_slurm, start, corpus, undisturbed, tmp_path
):
    workflow = on_cluster(tmp_path, corpus, 10)
    killed = start(workflow)
    killed.until(lambda _: started(tmp_path, 10))
    # Slow jobs, whatever the machine.
    slow = [each.job for each in records(tmp_path)[:2]]
    subprocess.check_call(["scontrol", "suspend", ",".join(slow)])
    second = workflow.call("speech_manifest")
    assert second.returncode == 1 and f"goes on (process {killed.process.pid} on " in second.stderr
    assert "unlock" not in second.stderr
    killed.kill()

    for arguments in (["-n"], []):
        lines = workflow.call("speech_manifest", *arguments).stderr.splitlines()
        line = " ".join(line for line in lines if "Millrace:" in line)
        assert f"was killed (process {killed.process.pid} on " in line and " --unlock`" in line
        assert re.search(rf"2 suspended.* {STEP}\)", line) and "`scancel --name=millrace_" in line
    workflow.run("--unlock")
    refused = workflow.call("speech_manifest")
    assert refused.returncode == 1
    assert re.search("Slurm jobs of a killed run go on: .*2 suspended", refused.stderr)
    subprocess.check_call(["scontrol", "resume", ",".join(slow)])
    while (done := workflow.call("speech_manifest", "--until", STEP)).returncode:
        assert "Slurm jobs of a killed run go on" in done.stderr
    assert "has been submitted" not in done.stderr
    assert sorted(each[1:3] for each in records(tmp_path)) == [
        (country, "COMPLETED") for country in COUNTRIES
    ]
    assert digests(workflow) == undisturbed


@pytest.mark.long
@pytest.mark.e2e
def test_while_a_local_step_of_a_killed_snakemake_lives_its_successor_is_refused(
    start, corpus, undisturbed, tmp_path
):
    workflow = Workflow(tmp_path, **config(corpus, 3))
    workflow.PLACE = ("--cores", "1")
    killed, steps = start(workflow), []

    def step_runs(_: str) -> bool:
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if (
                    os.readlink(entry / "cwd") == str(tmp_path)
                    and COMMAND in (entry / "cmdline").read_bytes()
                ):
                    steps.append(int(entry.name))
        return bool(steps)

    killed.until(step_runs)
    os.kill(steps[0], signal.SIGSTOP)
    killed.kill()
    workflow.run("--unlock")
    line = f"steps of a killed run go on here: {STEP}. Wait for them, or have them save and end: "
    for arguments in (["-n"], []):
        assert line + f"`kill {steps[0]}`" in workflow.call("speech_manifest", *arguments).stderr
    os.kill(steps[0], signal.SIGTERM)
    os.kill(steps[0], signal.SIGCONT)
    while (done := workflow.call("speech_manifest", "--until", STEP)).returncode:
        assert line in done.stderr
    outputs = digests(workflow)
    assert outputs.items() <= undisturbed.items() and len(outputs) == 3 * len(undisturbed) // 10
