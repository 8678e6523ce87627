"""Training on a real Slurm: its time limit, several nodes, a node that is lost."""

from __future__ import annotations

import json
import subprocess
import time
from collections import Counter
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import pytest

from tests.asr import audio_tars
from tests.asr.bucket_corpus import COLUMNS, write_manifest
from tests.slurm.cluster import wait
from tests.slurm.test_profile import OnCluster, jobs_as, needs_slurm, squeue
from tests.workflow.workflow import ROOT, Workflow

TRAINING = {"device": "cpu", "lr": 1e-3, "batch_seconds": 0.6, "num_workers": 1, "tensorboard": 0}
SECTION = {
    "source": "manifests",
    "manifest_dir": "manifests",
    "model_options": {"hidden": 16, "channels": 4},
    "training": {**TRAINING, "log_ids": 1, "log_steps": 5, "save_steps": 5},
}
PLACE = ("--profile", "slurm", "--retries", "0", "--slurm-init-seconds-before-status-checks", "1")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """50 short clips in buckets, and the shipped profile with a time limit of ten minutes for
    training."""
    folder = tmp_path_factory.mktemp("training")
    buckets = audio_tars.corpus(folder / "data", tars=3, members=20)
    rows = [
        row for part in sorted(buckets.glob("train/*")) for row in pq.read_table(part).to_pylist()
    ]
    rows = [{**{name: row[name] for name in COLUMNS}, "transcript": "a"} for row in rows]
    (folder / "manifests").mkdir()
    for split, chosen in {"train": rows[:50], "dev": rows[50:55], "test": rows[55:]}.items():
        write_manifest(folder / f"manifests/{split}.parquet", chosen)
    (folder / "slurm").mkdir()
    profile = (ROOT / "slurm/config.yaml").read_text()
    assert "runtime: 1440" in profile
    (folder / "slurm/config.yaml").write_text(profile.replace("runtime: 1440", "runtime: 10"))
    Workflow(folder, lanes=["asr"], asr=SECTION).run("asr_data")
    return folder


@pytest.fixture
def start(folder, slurm):
    """Start the workflow on the cluster with a changed config; ended with the test."""
    running = []

    def start(**changes: object) -> subprocess.Popen:
        workflow = OnCluster(
            folder, lanes=["asr"], asr={**SECTION, **changes}, audit={"refuse": "none"}
        )
        workflow.PLACE = PLACE
        pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
        running.append(subprocess.Popen(workflow.command("asr_train"), cwd=folder, **pipes))
        return running[-1]

    yield start
    for process in running:
        process.kill()
        process.wait()


def finish(process: subprocess.Popen, code: int = 0) -> str:
    """Wait for the workflow's end; what it has printed."""
    _, text = process.communicate(timeout=300)
    assert process.returncode == code, text
    return text


def wait_for_checkpoint(folder: Path, run: str) -> None:
    wait(
        lambda: (folder / f"results/asr/runs/{run}/checkpoints/last").exists(), folder, seconds=200
    )


def ranks(run: str) -> list[psutil.Process]:
    """The launchers, ranks and loaders' workers of a run; not Snakemake's, the shells and srun."""
    processes = []
    for process in psutil.process_iter(["cmdline"]):
        command = process.info["cmdline"] or []
        if f"results/asr/runs/{run}/metrics.json" in command and "python" in Path(command[0]).name:
            processes.append(process)
    return processes


def sample_ids(folder: Path, run: str) -> list[list]:
    """[step, epoch, ids] of every step and rank."""
    files = sorted((folder / f"results/asr/runs/{run}").glob("sample_ids.*.jsonl"))
    lines = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    return [[line["step"], line["epoch"], line["ids"]] for line in lines]


def metrics(folder: Path, run: str) -> dict:
    return {
        **json.loads((folder / f"results/asr/runs/{run}/metrics.json").read_bytes()),
        "seconds": 0,
    }


@needs_slurm
def test_a_run_beyond_its_time_limit_goes_on_in_the_same_job_as_if_undisturbed(start, folder):
    workflow = start(runs={"limited": {"epochs": 12}, "undisturbed": {"epochs": 12}})
    wait_for_checkpoint(folder, "limited")
    started = {process.pid: process for process in ranks("limited")}
    (rank,) = [
        process for process in started.values() if process.ppid() not in started
    ]  # no worker of a loader
    # Else the run might end before Slurm's notice, which takes up to half a minute, and wakes the
    # process.
    rank.suspend()
    (job,) = squeue_ids("limited")
    subprocess.check_call(["scontrol", "update", f"jobid={job}", "TimeLimit=5"])
    wait(lambda: squeue_ids("limited", "PENDING"), folder, seconds=100)
    subprocess.check_call(["scontrol", "update", f"jobid={job}", "TimeLimit=10"])
    finish(workflow)
    jobs = sorted(job for job in squeue("RestartCnt") if job[0] == "asr_train_model")
    assert jobs == [("asr_train_model", "COMPLETED", count) for count in "01"]
    assert "resuming from" in (folder / "logs/asr/train_model/limited.log").read_text()
    assert sample_ids(folder, "limited") == sample_ids(folder, "undisturbed")
    assert metrics(folder, "limited") == metrics(folder, "undisturbed")


@needs_slurm
def test_a_lost_node_ends_a_run_by_name_and_the_run_goes_on_with_one_node(start, folder):
    workflow = start(nodes=2, ranks=2, runs={"spread": {"epochs": 30}})
    wait_for_checkpoint(folder, "spread")
    before = time.monotonic()
    for process in ranks("spread"):
        if process.environ().get("SLURMD_NODENAME") == "n2":
            process.kill()
    wait(lambda: squeue_ids("spread", "FAILED"), folder)  # within a minute
    print(f"the other node ended after {time.monotonic() - before:.1f} s")
    assert "asr_train_model spread: failed: node n2 (ranks 2-3) was lost" in finish(
        workflow, code=1
    )
    logs = sorted(path.name for path in folder.glob("logs/asr/train_model/spread/*"))
    assert logs == [f"rank-{rank}.log" for rank in range(4)]

    finish(start(nodes=1, ranks=2, runs={"spread": {"epochs": 30}}))
    rows = (folder / "results/asr/runs/spread/metrics.jsonl").read_bytes().splitlines()
    trained = [row for row in map(json.loads, rows) if row["event"] == "train"]
    assert (trained[0]["world_size"], trained[-1]["world_size"]) == (4, 2)
    counts = Counter(
        (epoch, number) for _, epoch, ids in sample_ids(folder, "spread") for number in ids
    )
    assert len(counts) == 30 * 50 and set(counts.values()) == {1}
    assert [state for name, state, _ in squeue() if name == "asr_train_model"] == [
        "COMPLETED",
        "FAILED",
    ]


def squeue_ids(run, state="RUNNING") -> list[str]:
    lines = jobs_as("--Format=JobID:20,State:20,Comment:200")
    jobs = [line.split() for line in lines]
    return [job for job, now, comment in jobs if now == state and comment.endswith(f"_{run}")]
