"""Which files the rules of the speech lane ask for, and which of them are lost."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from millrace.common import atomic
from millrace.common.workflow import snakemake_state
from millrace.common.workflow.sources import Sources
from millrace.speech.inputs import GONE, HELD_OUT, SpeechInputs

SHARDS = Path("results/speech/shards")
INDEX = SHARDS / "partitions/malta-train-1-00000/index.parquet"


@pytest.fixture
def inputs(tmp_path, monkeypatch) -> SpeechInputs:
    """A country of two partitions, one of two tars, that are merged."""
    monkeypatch.chdir(tmp_path)
    names = {
        "train": ["malta-train-1-00000.tar", "malta-train-1-00001.tar"],
        "test": ["malta-test-00000.tar"],
    }
    for path in (INDEX, SHARDS / "partitions/malta-test-00000/index.parquet"):
        path.parent.mkdir(parents=True)
        path.touch()
    for split, tars in names.items():
        folder = tars[0].removeprefix("malta-")[:-10]
        (SHARDS / "malta" / folder).mkdir(parents=True)
        for tar in tars:
            (SHARDS / "malta" / folder / tar).touch()
            (SHARDS / "malta" / folder / f".{tar[:-4]}.index.parquet").touch()
        (SHARDS / f"malta_{split}_shards.txt").write_text(
            "".join(f"malta/{folder}/{tar}\n" for tar in tars)
        )
    hub = {"enabled": False, "endpoint": "local", "repo": "", "private": True, "licence": ""}
    hub["max_delete_fraction"] = 0.25
    return SpeechInputs(Sources({"malta": ["malta-train-1-00000", "malta-test-00000"]}), hub)


@pytest.mark.parametrize("name", ["malta-train-1-00001.tar", ".malta-train-1-00001.index.parquet"])
def test_a_lost_tar_or_sidecar_is_made_again_by_the_job_of_its_partition(inputs, name):
    assert inputs.listed.lost() == {}
    path = SHARDS / "malta/train-1" / name
    path.unlink()
    assert inputs.listed.lost() == {str(path): str(INDEX)}


def test_a_tar_is_not_lost_whose_partition_was_cut_again_has_no_index_or_is_no_more(
    inputs, monkeypatch
):
    (SHARDS / "malta/train-1/malta-train-1-00001.tar").unlink()
    listed = (SHARDS / "malta_train_shards.txt").stat().st_mtime_ns
    os.utime(INDEX, ns=(listed, listed + 10**9))
    assert inputs.listed.lost() == {}
    os.utime(INDEX, ns=(listed, listed))
    assert inputs.listed.lost() != {}
    inputs.sources.partitions["malta"].remove("malta-train-1-00000")
    assert inputs.listed.lost() == {}
    inputs.sources.partitions = {"estonia": []}
    assert inputs.listed.lost() == {}
    inputs.sources.partitions = {"malta": ["malta-train-1-00000"]}
    INDEX.unlink()
    assert inputs.listed.lost() == {} and inputs.listed.stale() == []
    # A partition that Snakemake knows is cut again: who can say of what its tars are?
    monkeypatch.setattr(snakemake_state, "is_recorded", lambda path: True)
    assert inputs.listed.stale() == [str(INDEX)]


MALTA = SimpleNamespace(country="malta")


def test_a_country_is_merged_of_all_that_its_partitions_write(inputs):
    manifests = {Path(path).name for path in inputs.manifest_files(MALTA)}
    assert manifests == {"manifest.parquet", "recordings.json", "rejects.jsonl", "ledger.json"}
    shards = {Path(path).name for path in inputs.shard_files(MALTA)}
    assert shards == {"index.parquet"}
    assert len(inputs.manifest_files(MALTA)) == 2 * 4 and len(inputs.shard_files(MALTA)) == 2
    names = ["malta-test-00000", "malta-validation-00000"]
    atomic.write_json(HELD_OUT, {"partitions": names})
    indices = [f"{SHARDS}/partitions/{name}/index.parquet" for name in names]
    assert inputs.held_out_indices(MALTA) == indices


def test_the_list_of_countries_that_are_no_more_is_an_input_once_there_is_one(inputs):
    assert inputs.gone() == []
    atomic.write_json(GONE, ["estonia"])
    assert inputs.gone() == [GONE]


def test_the_lane_ends_with_tables_shards_report_and_what_is_published_if_that_is_on(inputs):
    built = [
        "results/speech/manifest/malta_manifest.csv",
        "results/speech/manifest/malta_splits.csv",
        "results/speech/index.parquet",
        "results/speech/shards/malta_index.parquet",
        "results/speech/report/summary.html",
    ]
    assert inputs.targets() == built
    inputs.hub["enabled"] = True
    assert inputs.targets() == [*built, "results/speech/hub/receipt.json"]


def test_only_the_comparison_with_the_hub_sends_nothing(inputs):
    flags = [
        inputs.hub_flags(SimpleNamespace(publication=name)) for name in ("receipt.json", "diff.txt")
    ]
    assert ["--diff" in text for text in flags] == [False, True]
    for text in flags:
        assert "--repo local/speech" in text and "--max-delete-fraction 0.25" in text


def test_manifests_are_made_before_any_tar_and_need_none_that_is_lost(inputs):
    assert set(inputs.listed.before) == {"manifest"}
