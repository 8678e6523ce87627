"""Which files the rules of the image lane ask for."""

from __future__ import annotations

from argparse import Namespace

from millrace.common.workflow.config import checked_config
from millrace.common.workflow.sources import Sources
from millrace.image.inputs import ImageInputs
from tests.workflow.workflow import ROOT


def test_only_the_index_of_train_depends_on_val_and_on_what_becomes_of_leaks():
    section = checked_config({"image": {"on_leak": "keep"}}, ROOT / "rules/schemas")["image"]
    sources = Sources({"train": ["train-00000"], "validation": ["validation-00000"]})
    inputs = ImageInputs(section, sources, gpus=None, ancient=str)

    train = Namespace(split="train")
    place = "results/image/records/partitions"
    assert inputs.reports(train) == [f"{place}/train-00000.json", f"{place}/validation-00000.json"]
    assert inputs.held_out(train) == ["results/image/partitions/splits/validation.json"]
    assert inputs.on_leak(train) == "--on-leak keep"

    validation = Namespace(split="validation")
    assert inputs.reports(validation) == [f"{place}/validation-00000.json"]
    assert (inputs.held_out(validation), inputs.on_leak(validation)) == ([], "")
