"""Which files the rules of the speech lane ask for, and which of them are lost."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from millrace.common.workflow.sources import Sources
from millrace.speech.inputs import SpeechInputs

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
        (SHARDS / f"malta_{split}_shards.txt").write_text(
            "".join(f"malta/{folder}/{tar}\n" for tar in tars)
        )
    return SpeechInputs(
        Sources({"malta": ["malta-train-1-00000", "malta-test-00000"]}), {"repo": ""}
    )


def test_a_lost_tar_is_made_again_by_the_job_of_its_partition(inputs):
    assert inputs.listed.lost() == {}
    tar = SHARDS / "malta/train-1/malta-train-1-00001.tar"
    tar.unlink()
    assert inputs.listed.lost() == {str(tar): str(INDEX)}


def test_a_tar_is_not_lost_whose_partition_was_cut_again_has_no_index_or_is_no_more(inputs):
    (SHARDS / "malta/train-1/malta-train-1-00001.tar").unlink()
    listed = (SHARDS / "malta_train_shards.txt").stat().st_mtime_ns
    os.utime(INDEX, ns=(listed, listed + 10**9))
    assert inputs.listed.lost() == {}
    os.utime(INDEX, ns=(listed, listed))
    assert inputs.listed.lost() != {}
    inputs.sources.partitions["malta"].remove("malta-train-1-00000")
    assert inputs.listed.lost() == {}
    inputs.sources.partitions["malta"].append("malta-train-1-00000")
    INDEX.unlink()
    assert inputs.listed.lost() == {}


def test_tars_of_a_country_that_is_no_more_are_not_lost(inputs):
    (SHARDS / "malta/train-1/malta-train-1-00001.tar").unlink()
    inputs.sources.partitions = {"estonia": []}
    assert inputs.listed.lost() == {}
