"""Kill the shard stage at random moments: what was whole stays, and the end is as if nothing had
happened."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import time

import pytest

from tests import corpora
from tests.workflow.workflow import Workflow

pytestmark = [pytest.mark.e2e, pytest.mark.long]
FINAL = [f"results/speech/**/*.{suffix}" for suffix in ("tar", "parquet", "csv", "jsonl")]
SIDECARS = "results/speech/shards/**/.*.index.parquet"
KILLS = 6


def finals(workflow: Workflow) -> dict[str, str]:
    return {path: sha for pattern in FINAL for path, (sha, _) in workflow.files(pattern).items()}


def finished(workflow: Workflow) -> dict[str, tuple[str, int]]:
    """The tars that are whole and known to be: their sidecar, written last, is there."""
    named = {path.rsplit("/", 1)[1] for path in workflow.files(SIDECARS)}
    tars = workflow.files("results/speech/shards/**/*.tar")
    return {
        path: state
        for path, state in tars.items()
        if f".{path.rsplit('/', 1)[1][:-4]}.index.parquet" in named
    }


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    corpora.make_corpus(folder / "countries", {"germany": 16}, seconds=60)
    # Small shards, so that a partition has several and a kill falls between them.
    section = {"countries_root": "countries", "assignment_file": "a.jsonl", "partition_hours": 0.2}
    workflow = Workflow(folder, speech={**section, "max_shard_size_gb": 0.004})
    workflow.run("speech_manifest")
    workflow.run("speech_shards")
    return workflow


def sidecars(workflow: Workflow) -> int:
    return len(list(workflow.folder.glob(SIDECARS)))


def run_and_kill(workflow: Workflow, whole: int, seconds: float) -> None:
    """Run the shard stage, and kill it so many seconds after it has more than `whole` shards."""
    log = workflow.folder / "killed.log"
    with open(log, "w") as file:
        running = subprocess.Popen(
            # A killed run leaves Snakemake's lock, which is the user's to remove.
            workflow.command("speech_shards", "--nolock"),
            cwd=workflow.folder,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
    while running.poll() is None and sidecars(workflow) <= whole:
        time.sleep(0.02)
    time.sleep(seconds)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(running.pid, signal.SIGKILL)
    running.wait()


def test_kills_of_the_shard_stage(undisturbed, tmp_path):
    os.symlink(undisturbed.folder / "countries", tmp_path / "countries")
    workflow = Workflow(tmp_path, **undisturbed.config)
    workflow.run("speech_manifest")
    rng, whole = random.Random(7), {}
    for _ in range(KILLS):
        # A shard is built in some tenths of a second: the kill falls into the next one.
        run_and_kill(workflow, sidecars(workflow), rng.uniform(0, 0.15))
        tars = finished(workflow)
        for path, state in whole.items():
            assert tars.get(path) == state, f"{path} was whole, and was built again"
        whole = tars
    assert whole
    workflow.run("speech_shards")
    assert finals(workflow) == finals(undisturbed)
    after = workflow.files("results/speech/shards/**/*.tar")
    assert all(after[path] == state for path, state in whole.items())
    assert workflow.dry("speech_shards") == []
    assert not list((tmp_path / "results").rglob("*.partial"))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small tmpfs")
def test_a_full_disk_is_a_clear_error_and_a_clean_resume(undisturbed, tmp_path):
    small = tmp_path / "small"
    small.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(small)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("no tmpfs can be mounted here")
    try:
        os.symlink(undisturbed.folder / "countries", small / "countries")
        workflow = Workflow(small, **undisturbed.config)
        done = workflow.call("speech_shards")
        assert done.returncode != 0
        logs = "".join(path.read_text() for path in small.glob("logs/speech/create_shards/*.log"))
        assert "ERROR" in logs and "the disk is full" in logs and "Traceback" not in logs
        assert not list((small / "results").rglob("*.partial"))
        whole = finished(workflow)
        subprocess.check_call(["mount", "-o", "remount,size=200m", str(small)])
        workflow.run("speech_manifest")
        workflow.run("speech_shards")
        after = workflow.files("results/speech/shards/**/*.tar")
        assert all(after[path] == state for path, state in whole.items())
        assert finals(workflow) == finals(undisturbed)
    finally:
        subprocess.check_call(["umount", str(small)])
