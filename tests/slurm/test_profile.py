"""`snakemake --profile slurm`: both lanes on a real Slurm, and the same bytes as without it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections import Counter

import pytest

from tests import corpora
from tests.workflow.workflow import ROOT, Workflow

# Not compared: what holds times of files or is written by a later parse, and a run's speed.
SPEECH, BUCKETS = (
    r"speech/partitions/(.*/)?(index|built)",
    r"asr/buckets/(tars\.parquet|rows-.*\.table)",
)
TIMES = re.compile(rf"results/({SPEECH}|asr/runs|asr/report/runs|audit/|{BUCKETS})")
CONFIG = {
    "lanes": ["speech", "asr"],
    "asr": {
        "training": {"lr": 4e-3, "batch_seconds": 20, "num_workers": 1},
        "model_options": {"hidden": 32, "channels": 4, "bins": 20},
        "runs": {"demo": {"max_steps": 6, "log_steps": 3}},
    },
}


def needs_slurm(test):
    daemons = pytest.mark.debian("sbatch", "slurmctld", "slurmd", "munged")
    return pytest.mark.long(pytest.mark.e2e(daemons(test)))


class OnCluster(Workflow):
    PLACE = ("--profile", "slurm")


@needs_slurm
def test_both_lanes_run_on_a_cluster_with_the_bytes_of_a_local_run(slurm, tmp_path):
    there, here = tmp_path / "cluster", tmp_path / "local"
    corpora.make_corpus(there / "resources/speech/countries", {"malta": 8}, seconds=20)
    # With its times, which indexes hold.
    shutil.copytree(there, here, copy_function=shutil.copy2)
    # As a site would change it.
    (there / "slurm").mkdir()
    profile = (
        (ROOT / "slurm/config.yaml")
        .read_text()
        .replace("# slurm_partition: gpu", "slurm_partition: gpu")
    )
    (there / "slurm/config.yaml").write_text(profile)
    on_cluster = OnCluster(there, **CONFIG)
    planned = Counter(job.rule for job in on_cluster.dry())
    del planned["audit_verify_findings"]  # on the login node
    on_cluster.run()
    assert on_cluster.dry() == []
    jobs = squeue()
    assert Counter(rule for rule, *_ in jobs) == planned, "each step once"
    assert {state for _, state, *_ in jobs} == {"COMPLETED"}
    assert {(rule, gpus) for rule, _, gpus in jobs if gpus != "N/A"} == {
        ("asr_train_model", "gres:gpu:1")
    }
    assert {rule for rule, _, partition in squeue("Partition") if partition == "gpu"} == {
        "asr_train_model"
    }

    local = Workflow(here, **CONFIG)
    local.run()
    ours, theirs = (
        {
            path: digest
            for path, (digest, _) in each.files("results/**/*").items()
            if not TIMES.match(path)
        }
        for each in (on_cluster, local)
    )
    assert ours == theirs and len(ours) > 30
    ours, theirs = (
        json.loads((folder / "results/asr/runs/demo/metrics.json").read_bytes())
        for folder in (there, here)
    )
    assert {**ours, "seconds": 0} == {**theirs, "seconds": 0} and ours["optimizer_steps"] == 6


@needs_slurm
def test_a_job_that_lacks_memory_is_tried_twice_more_with_more(slurm, tmp_path):
    (tmp_path / "run").mkdir()
    os.symlink(ROOT / "slurm", tmp_path / "run/slurm")
    corpora.make_corpus(tmp_path / "run/resources/speech/countries", {"malta": 1}, seconds=10)
    # Python alone needs more than 80 MB.
    too_little = ["--set-resources", "speech_generate_manifest:mem_mb=20*2**(attempt-1)"]
    too_little += ["--slurm-init-seconds-before-status-checks", "1"]
    assert OnCluster(tmp_path / "run").call("speech_manifest", *too_little).returncode == 1
    assert sorted(squeue("MinMemory")) == [
        ("speech_generate_manifest", "FAILED", memory) for memory in ("20M", "40M", "80M")
    ]


def jobs_as(*layout) -> list[str]:
    """A line of squeue for each job of the cluster, ended ones too."""
    command = ["squeue", "--states=all", "--noheader", *layout]
    return subprocess.check_output(command, text=True).splitlines()


def squeue(field="tres-per-job") -> list[tuple[str, str, str]]:
    """Rule, state and `field` of all jobs."""
    jobs = [line.split() for line in jobs_as(f"--Format=Comment:200,State:20,{field}:40")]
    return [
        (re.split("rule_|_wildcards_", comment)[1], state, value) for comment, state, value in jobs
    ]
