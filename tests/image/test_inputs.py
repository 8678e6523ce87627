"""Which files the rules of the image lane ask for."""

from __future__ import annotations

from argparse import Namespace

from millrace.common import atomic
from millrace.common.workflow import snakemake_state
from millrace.common.workflow.config import checked_config
from millrace.common.workflow.sources import Sources
from millrace.image.inputs import ImageInputs
from tests.workflow.workflow import ROOT


def inputs(sources: Sources, **section: object) -> ImageInputs:
    checked = checked_config({"image": section}, ROOT / "rules/schemas")["image"]
    return ImageInputs(checked, sources, gpus=None, ancient=str)


def test_a_run_and_its_audit_have_the_seed_of_the_lane():
    run = Namespace(run="a")
    of = inputs(Sources({"train": ["x"]}), seed=7, runs={"a": {"epochs": 2, "shuffle_pool": 4}})
    assert of.run_arguments(run) == "--epochs 2 --producer child --seed 7 --shuffle-pool 4"
    assert of.audited("a").arguments["seed"] == 7


def test_there_are_no_runs_before_there_are_images():
    assert inputs(Sources(), runs={"a": {}}).targets() == []


def test_only_the_index_of_train_depends_on_val_and_on_what_becomes_of_leaks():
    sources = Sources({"train": ["train-00000"], "validation": ["validation-00000"]})
    of = inputs(sources, on_leak="keep")

    train = Namespace(split="train")
    place = "results/image/records/partitions"
    assert of.reports(train) == [f"{place}/train-00000.json", f"{place}/validation-00000.json"]
    assert of.held_out(train) == ["results/image/partitions/splits/validation.json"]
    assert of.on_leak(train) == "--on-leak keep"

    validation = Namespace(split="validation")
    assert of.reports(validation) == [f"{place}/validation-00000.json"]
    assert (of.held_out(validation), of.on_leak(validation)) == ([], "")


def test_an_audit_of_a_run_has_all_that_its_loader_is_made_with():
    own = {"workers": 1, "batch_size": 8, "augment": "crop", "mixed_batches": 2}
    of = inputs(Sources({"train": ["x"]}), runs={"a": {**own, "lr": 0.5, "epochs": 3}})
    assert of.audited("a").arguments == {"records": "results/image/records", "seed": 42} | own


def test_a_record_file_is_made_again_by_the_job_of_its_partition(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = [f"train-0000{number}-of-00002.h5" for number in range(2)]
    for number, name in enumerate(names):
        plan = {"files": [{"name": name}]}
        atomic.write_json(f"results/image/partitions/train-{number}.json", plan)
    listed = [{"name": name} for name in names]
    atomic.write_json("results/image/records/train/records.json", {"files": listed})
    atomic.write_json("results/image/records/val/records.json", {"files": [{"name": "val.h5"}]})

    of = inputs(Sources({"train": ["train-0", "train-1"], "val": []}))
    files, made_with = of.listed[:2]
    paths = [f"results/image/records/train/{name}" for name in names]
    assert list(files()) == [*paths, "results/image/records/val/val.h5"]
    assert made_with(f"x/{names[1]}") == "results/image/records/partitions/train-1.json"
    assert made_with("x/none.h5") is None
    # One that Snakemake knows and that is not there has failed, perhaps after it had written some.
    monkeypatch.setattr(snakemake_state, "is_recorded", lambda path: "train-1" in path)
    assert of.listed.stale() == ["results/image/records/partitions/train-1.json"]


def test_readers_are_measured_only_where_there_are_images():
    assert inputs(Sources()).readers() == []
    assert inputs(Sources({"train": ["x"]})).readers() == ["results/image/report/readers.json"]
