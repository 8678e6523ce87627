"""Profiles: what each may say, so that `snakemake --profile slurm` is what it reads like."""

from __future__ import annotations

import re

import pytest
import yaml

from millrace.asr.inputs import AsrInputs
from millrace.common.stopping import TIME_IS_UP
from millrace.common.workflow.config import checked_config
from millrace.common.workflow.sources import Sources
from tests.workflow.conftest import TWO_RANKS
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
    online = {name for name in jobs if "_fetch_" in name or "_upload_" in name}
    assert len(online) == 5 and all(jobs[name]["local"] for name in online)


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
    for name in ("asr_train_model", "asr_verify_calibration"):
        assert "nodes" in jobs[name]["resources"]
    # As many GPUs as its device and ranks need, unless its nodes say it.
    fixed = {name for name, rule in jobs.items() if "gpu" in rule["resources"]}
    fixed -= {name for name, rule in jobs.items() if "gpu" in rule["computed"]}
    assert fixed <= {"asr_train_model", "asr_verify_calibration"}
    for name, rule in jobs.items():
        if "gpu" in rule["resources"] or name == "audit_check_loader":
            assert rule["shell"].startswith("{params.environment} "), name


@pytest.mark.parametrize(
    "rule, calibrates",
    [
        ("asr_calibrate_bucket_bs", "bucket"),
        ("asr_verify_calibration", "all"),
        ("asr_train_model", ""),
    ],
)
def test_memory_is_asked_for_that_all_ranks_of_a_step_take(jobs, rule, calibrates):
    section = checked_config({"asr": TWO_RANKS}, ROOT / "rules/schemas")["asr"]
    asr = AsrInputs(section, Sources(), list)
    mb = [300 + asr.training_mb(kind) for kind in (calibrates, "bucket", "all", "")]
    assert jobs[rule]["needs"]["mem_mb"][0] == mb[0] and len(set(mb)) == 3


MEASURED = re.findall(
    r"^\| `(\w+)` \| ([\d.]+) \| \d+ \| (\d+) \| \d+ \| (\d+) \|$",
    (ROOT / "docs/cluster.md").read_text(),
    re.M,
)


@pytest.mark.parametrize("rule, input_mb, mem_mb, runtime", MEASURED)
def test_a_step_asks_for_what_the_page_of_clusters_compares_with_what_it_took(
    jobs, rule, input_mb, mem_mb, runtime
):
    for need, said in (("mem_mb", mem_mb), ("runtime", runtime)):
        without, with_1000_mb = jobs[rule]["needs"][need]
        asked = without + (with_1000_mb - without) * float(input_mb) / 1000
        # Partitions are bounded; what reads all of them grows.
        is_bounded = bool({"partition", "tars"} & {*jobs[rule]["wildcards"]})
        assert (with_1000_mb > without) != is_bounded, need
        # The page knows the input to two digits, and the limits were asked for in whole numbers.
        assert asked == pytest.approx(int(said), rel=0.01, abs=1), need


def test_training_is_told_before_its_time_is_up_and_its_job_starts_again():
    notice = TIME_IS_UP.name.removeprefix("SIG")
    for name, resources in SLURM["set-resources"].items():
        options = resources["slurm_extra"].strip("'").split()
        assert options == [f"--signal={notice}@300", "--requeue", "--open-mode=append"], name


def test_what_was_left_half_written_is_built_again_and_what_failed_is_tried_again():
    assert DEFAULT["rerun-incomplete"] and DEFAULT["keep-going"] and SLURM["retries"] == 2


def test_the_log_of_a_failed_step_is_shown():
    assert DEFAULT["show-failed-logs"]
