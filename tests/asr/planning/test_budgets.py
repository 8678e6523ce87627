"""Budgets of batches: from seconds, from our calibration, from the original script's flat form."""

import json

import pytest

from millrace.asr.planning.budgets import read_budgets
from millrace.asr.planning.cut import BatchBudget
from tests.refusals import refused


@pytest.fixture
def folder(tmp_path):
    buckets = [{"bucket_id": name, "path": f"{name}.parquet"} for name in ("b_0_3", "b_3_5")]
    (tmp_path / "bucket_config.json").write_text(json.dumps({"buckets": buckets}))
    return tmp_path


def calibrated(folder, value):
    path = folder / "calibrated_bs.json"
    path.write_text(json.dumps(value))
    return read_budgets(folder, path, 240.0)


def test_without_calibration_seconds_count(folder):
    assert read_budgets(folder, "", 120.0) == [BatchBudget(seconds=120.0)] * 2


def test_the_original_form_and_ours_are_read(folder):
    flat = {"b_0_3": {"batch_size": 80, "grad_acc": 1}, "b_3_5": {"batch_size": 48, "grad_acc": 1}}
    rows = [BatchBudget(seconds=None, rows=80), BatchBudget(seconds=None, rows=48)]
    assert calibrated(folder, flat) == rows
    assert calibrated(folder, {"key": {}, "buckets": flat}) == rows


def test_a_calibration_of_other_buckets_or_none_is_an_error(folder):
    with refused("b_3_5"):
        calibrated(folder, {"b_0_3": {"batch_size": 80}})
    with refused("no calibration"):
        calibrated(folder, [1, 2])
    with refused("asr_calibrate"):
        read_budgets(folder, folder / "none.json", 240.0)
