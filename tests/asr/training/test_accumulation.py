"""The grad_acc of the original script's calibrated_bs.json, one number for each bucket, as one for
all."""

from __future__ import annotations

import pytest

from millrace.asr.training.accumulation import with_grad_acc
from millrace.common import atomic
from millrace.common.training.settings import LoopSettings
from tests.refusals import refused

# As the original has it, with the rows of its buckets.
BUCKETS = {
    # name: (batch_size, grad_acc, rows)
    "b_0_3": (80, 1, 126_000),
    "b_3_5": (48, 1, 248_000),
    "b_5_7": (32, 1, 137_000),
    "b_7_10": (24, 2, 353_000),
    "b_10_15": (16, 3, 131_000),
    "b_15_20": (8, 6, 5_000),
}
FLAT = {name: {"batch_size": of[0], "grad_acc": of[1]} for name, of in BUCKETS.items()}
ROWS = {name: rows for name, (_, _, rows) in BUCKETS.items()}
NONE = dict.fromkeys(ROWS, 0)


def accumulated(folder, flat: dict, rows: dict = ROWS, given: int = 1) -> int:
    path = folder / "calibrated_bs.json"
    atomic.write_json(path, flat)
    return with_grad_acc(LoopSettings(grad_acc=given), str(path), rows).grad_acc


@pytest.mark.parametrize(
    "rows, number",
    [
        (ROWS, 2),
        ({**NONE, "b_3_5": 900}, 1),
        ({**NONE, "b_15_20": 900}, 6),
        ({**NONE, "b_10_15": 1600, "b_15_20": 800}, 4),  # 100 of 3, 100 of 6: 50 updates
    ],
)
def test_an_epoch_has_as_many_updates_as_by_the_numbers_of_the_buckets(tmp_path, rows, number):
    assert accumulated(tmp_path, FLAT, rows) == number
    micro_batches = {name: count / FLAT[name]["batch_size"] for name, count in rows.items()}
    theirs = sum(count / FLAT[name]["grad_acc"] for name, count in micro_batches.items())
    assert abs(sum(micro_batches.values()) / theirs - number) <= 0.5


def test_files_without_numbers_and_our_own_leave_the_setting(tmp_path):
    sizes = {name: {"batch_size": entry["batch_size"]} for name, entry in FLAT.items()}
    assert accumulated(tmp_path, sizes, given=3) == 3
    assert accumulated(tmp_path, {"key": {}, "buckets": FLAT}, given=3) == 3


def test_a_number_that_was_given_counts_instead(tmp_path):
    assert accumulated(tmp_path, FLAT, given=3) == 3


@pytest.mark.parametrize(
    "entry, message",
    [
        ({"batch_size": 48}, "grad_acc of b_3_5 is None. Write a whole number"),
        ({"batch_size": 48, "grad_acc": 0}, "grad_acc of b_3_5 is 0"),
        ({"batch_size": 48, "grad_acc": 1.5}, "grad_acc of b_3_5 is 1.5"),
    ],
)
def test_numbers_that_are_none_are_refused(tmp_path, entry, message):
    with refused(message):
        accumulated(tmp_path, {**FLAT, "b_3_5": entry})
