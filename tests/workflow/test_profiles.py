"""Profiles: what each may say, so that `snakemake --profile slurm` is what it reads like."""

from __future__ import annotations

import yaml

from millrace.common.stopping import TIME_IS_UP
from tests.workflow.workflow import ROOT

DEFAULT, SLURM = (
    yaml.safe_load((ROOT / f"profiles/{name}/config.yaml").read_text())
    for name in ("default", "slurm")
)


def test_the_default_profile_overrides_no_key_of_slurm():
    assert not DEFAULT.keys() & SLURM.keys()


def test_slurm_is_found_by_its_name_in_the_clone():
    assert (ROOT / "slurm").is_symlink() and (ROOT / "slurm").resolve() == ROOT / "profiles/slurm"


def test_what_needs_the_network_runs_on_the_login_node(jobs):
    fetching = {name for name in jobs if "_fetch_" in name}
    assert fetching and all(jobs[name]["local"] for name in fetching)


def test_the_steps_that_need_gpus_are_those_whose_partition_a_site_sets(jobs):
    assert {name for name, rule in jobs.items() if "gpu" in rule["resources"]} == set(
        SLURM["set-resources"]
    )


def test_each_job_says_how_much_memory_and_time_it_takes(jobs):
    cluster_jobs = {name: rule["resources"] for name, rule in jobs.items() if not rule["local"]}
    assert [name for name, resources in cluster_jobs.items() if "mem_mb" not in resources] == []
    # Training takes the time that a site's partition allows.
    timeless = {name for name, resources in cluster_jobs.items() if "runtime" not in resources}
    assert timeless == set(SLURM["set-resources"])
    assert all("runtime" in resources for resources in SLURM["set-resources"].values())


def test_a_run_has_the_cores_gpus_nodes_and_environment_of_its_config(jobs):
    started = {name: rule for name, rule in jobs.items() if "launcher" in rule["params"]}
    assert {name.partition("_")[0] for name in started} == {"asr", "music", "image"}
    for name, rule in started.items():
        assert "_cores" in rule["computed"], name
        assert "gpu" in rule["computed"] or "nodes" in rule["resources"], name
    assert "nodes" in jobs["asr_train_model"]["resources"]
    for name, rule in jobs.items():
        if "gpu" in rule["resources"] or name == "audit_check_loader":
            assert rule["shell"].startswith("{params.environment} "), name


def test_training_is_told_before_its_time_is_up_and_its_job_starts_again():
    notice = TIME_IS_UP.name.removeprefix("SIG")
    for name, resources in SLURM["set-resources"].items():
        options = resources["slurm_extra"].strip("'").split()
        assert options == [f"--signal={notice}@300", "--requeue", "--open-mode=append"], name


def test_what_was_left_half_written_is_built_again_and_what_failed_is_tried_again():
    assert DEFAULT["rerun-incomplete"] and DEFAULT["keep-going"] and SLURM["retries"] == 2
