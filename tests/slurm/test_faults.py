"""What clusters do to a run: jobs are cancelled, nodes go down, Snakemake is killed. No output is lost or made
twice."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from tests import corpora
from tests.slurm.cluster import cluster
from tests.slurm.test_profile import OnCluster, needs_slurm
from tests.workflow.workflow import ROOT, Workflow

STEP = "speech_generate_manifest"
COUNTRIES = [f"land-{number}" for number in range(10)]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("corpus")
    corpora.make_corpus(root, dict.fromkeys(COUNTRIES, 1), seconds=10)
    return root


@pytest.fixture(scope="module")
def undisturbed(corpus, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    workflow = Workflow(tmp_path_factory.mktemp("undisturbed"), **config(corpus, 10))
    workflow.run("speech_manifest", "--until", STEP)
    return digests(workflow)


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory):
    """A test cluster in the environment of this process."""
    folder = tmp_path_factory.mktemp("slurm") / "cluster"
    with cluster(folder) as environment, pytest.MonkeyPatch.context() as patch:
        for name in ("PATH", "SLURM_CONF"):
            patch.setenv(name, environment[name])
        yield


def config(corpus: Path, countries: int) -> dict:
    section = {"countries_root": str(corpus), "countries": COUNTRIES[:countries], "assignment_file": "a.jsonl"}
    return {"lanes": ["speech"], "speech": section}


def digests(workflow: Workflow) -> dict[str, str]:
    return {path: sha for path, (sha, _) in workflow.files("results/speech/manifest/**/*").items()}


class Start:
    """Snakemake in the background, and what it prints."""

    def __init__(self, workflow: Workflow, *arguments: str) -> None:
        self.path = workflow.folder / f"start-{time.monotonic_ns()}.log"
        command = workflow.command("speech_manifest", "--until", STEP, *arguments)
        with open(self.path, "wb") as file:
            self.process = subprocess.Popen(command, cwd=workflow.folder, stdout=file, stderr=file)

    @property
    def text(self) -> str:
        return self.path.read_text()

    def until(self, condition, seconds: float = 90) -> None:
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end and self.process.poll() is None, self.text
            time.sleep(0.1)

    def succeeds(self) -> None:
        assert self.process.wait(120) == 0, self.text

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


def on_cluster(folder: Path, corpus: Path, countries: int) -> OnCluster:
    os.symlink(ROOT / "slurm", folder / "slurm")
    workflow = OnCluster(folder, **config(corpus, countries))
    workflow.PLACE = (*OnCluster.PLACE, "--slurm-init-seconds-before-status-checks", "1")
    return workflow


def records(folder: Path) -> list[tuple[str, str, str, str, int]]:
    """Job, country, state, node and restarts of all jobs of a folder, ended ones too."""
    command = ["squeue", "--states=all", "--noheader", "--format=%i|%k|%T|%N|%Z", "--sort=i"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    rows = [line.split("|") for line in lines if line.endswith(f"|{folder}")]
    return [(job, re.search(r"land-\d", comment)[0], state, node) for job, comment, state, node, _ in rows]


def running(folder: Path) -> list[tuple[str, str, str, str]]:
    return [record for record in records(folder) if record[2] == "RUNNING"]


def restarts(job: str) -> int:
    text = subprocess.run(["scontrol", "show", "job", job], capture_output=True, text=True, check=True).stdout
    return int(re.search(r"Restarts=(\d+)", text)[1])


@needs_slurm
def test_cancelled_jobs_are_tried_again_and_those_of_a_lost_node_elsewhere(
    slurm, corpus, undisturbed, tmp_path: Path
):
    workflow = on_cluster(tmp_path, corpus, 7)
    start = Start(workflow)
    start.until(lambda: len(running(tmp_path)) == 7)
    first = running(tmp_path)
    lost = [record for record in first if record[3] == "n1"]
    cancelled, lost = [*[record for record in first if record[3] == "n2"][:2], lost[0]], lost[1:]
    subprocess.run(["scancel", *(job for job, *_ in cancelled)], check=True)
    subprocess.run(["scontrol", "update", "nodename=n1", "state=down", "reason=test"], check=True)
    try:
        start.until(lambda: all(restarts(job) for job, *_ in lost))
        # Slurm lets a job wait two minutes before it runs elsewhere.
        for job, *_ in lost:
            subprocess.run(["scontrol", "update", f"jobid={job}", "starttime=now"], check=True)
        start.succeeds()
    finally:
        subprocess.run(["scontrol", "update", "nodename=n1", "state=resume"], check=False)
    ended = Counter((country, state) for _, country, state, _ in records(tmp_path))
    assert ended == Counter((country, "COMPLETED") for country in COUNTRIES[:7]) + Counter(
        (country, "CANCELLED") for _, country, _, _ in cancelled
    )
    assert {job: restarts(job) for job, *_ in records(tmp_path) if restarts(job)} == {job: 1 for job, *_ in lost}
    assert len(lost) > 1
    assert digests(workflow) == {path: sha for path, sha in undisturbed.items() if path.split("land-")[1][0] < "7"}
    assert workflow.dry("--until", STEP) == []


@needs_slurm
def test_a_killed_snakemake_is_followed_by_one_that_waits_for_its_jobs(slurm, corpus, undisturbed, tmp_path: Path):
    workflow = on_cluster(tmp_path, corpus, 10)
    killed = Start(workflow)
    killed.until(lambda: len(running(tmp_path)) == 10)
    # Slow jobs, whatever the machine.
    slow = [job for job, *_ in running(tmp_path)[:2]]
    subprocess.run(["scontrol", "suspend", ",".join(slow)], check=True)
    second = workflow.call("speech_manifest")
    assert second.returncode == 1 and f"goes on (process {killed.process.pid} on " in second.stderr
    assert "unlock" not in second.stderr
    killed.kill()

    def said(*arguments: str) -> str:
        return "".join(line for line in workflow.call(*arguments).stderr.splitlines() if "Millrace:" in line)

    for arguments in (["-n"], []):
        line = said("speech_manifest", *arguments)
        assert f"was killed (process {killed.process.pid} on " in line and "`snakemake --unlock`" in line
        assert re.search(rf"2 suspended.* {STEP}\)", line) and "`scancel --name=millrace_" in line
    workflow.run("--unlock")
    assert "The next run waits for them" in said("speech_manifest", "-n")
    successor = Start(workflow)
    successor.until(lambda: "This run waits for them" in successor.text)
    subprocess.run(["scontrol", "resume", ",".join(slow)], check=True)
    successor.succeeds()
    assert "Nothing to be done" in successor.text
    assert sorted(record[1:3] for record in records(tmp_path)) == [(country, "COMPLETED") for country in COUNTRIES]
    assert digests(workflow) == undisturbed


@pytest.mark.e2e
def test_a_local_step_of_a_killed_snakemake_ends_before_its_successor_starts(corpus, undisturbed, tmp_path: Path):
    workflow = Workflow(tmp_path, **config(corpus, 10))
    workflow.PLACE = ("--cores", "1")
    killed, steps = Start(workflow), []

    def step_runs() -> bool:
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                mine = os.readlink(entry / "cwd") == str(tmp_path)
                if mine and (entry / "cmdline").read_bytes().split(b"\0")[1:3] == [b"-m", b"millrace.speech.generate_manifest"]:
                    steps.append(int(entry.name))
            except OSError:
                continue
        return bool(steps)

    killed.until(step_runs)
    os.kill(steps[0], signal.SIGSTOP)
    killed.kill()
    workflow.run("--unlock")
    said = workflow.call("speech_manifest", "-n").stderr
    assert f"{STEP} of a killed run goes on here (process {steps[0]}): the next run ends it" in said
    successor = Start(workflow)
    successor.until(lambda: "this run ends it" in successor.text)
    os.kill(steps[0], signal.SIGCONT)
    successor.succeeds()
    assert not Path(f"/proc/{steps[0]}").exists() or not Path(f"/proc/{steps[0]}/environ").read_bytes()
    assert digests(workflow) == undisturbed
