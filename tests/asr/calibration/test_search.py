"""The search for the batch size, on devices that a formula stands for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.asr.calibration.search import Search, backed_off_size, calibrate, largest
from millrace.common.errors import MillraceError


class Device:
    """n rows take fixed + each * n ** power GB; above `crash` GB the device is out of memory."""

    def __init__(self, fixed: float = 1.0, each: float = 0.1, power: float = 1.0, crash: float = 15.0):
        self.fixed, self.each, self.power, self.crash = fixed, each, power, crash
        self.tried: list[int] = []

    def peak(self, rows: int) -> float:
        return self.fixed + self.each * rows**self.power

    def __call__(self, rows: int) -> dict:
        self.tried.append(rows)
        peak, heaviest = self.peak(rows), {"step": 1, "rows": rows, "seconds": 9.9, "characters": 100}
        if peak > self.crash:
            return {"oom": True, "steps": 0, "heaviest": heaviest, "message": "tried to allocate 2 GB"}
        facts = {"peak_gb": peak, "step_peak_gb": peak, "fixed_gb": self.fixed}
        return {"oom": False, "steps": 5, "heaviest": heaviest, **facts}


@given(
    limit=st.floats(2, 140),
    fixed=st.floats(0.5, 1.9),
    each=st.floats(1e-3, 5),
    power=st.sampled_from([0.8, 1.0, 1.3]),
    crash=st.sampled_from([1.0, 1.5, 100.0]),
    start=st.integers(1, 300),
    rows=st.integers(1, 5000),
)
def test_the_batch_fits_and_one_in_thirty_two_more_does_not(limit, fixed, each, power, crash, start, rows):
    device = Device(fixed, each, power, crash * limit)
    search = Search(limit, rows=rows, start_bs=start)
    if device.peak(1) > limit:
        with pytest.raises(MillraceError, match="a batch of 1 does not fit"):
            largest(search, device)
        return
    size, trials = largest(search, device)
    assert [trial["rows"] for trial in trials] == device.tried
    assert device.peak(size) <= limit and size in device.tried
    assert size == search.max_rows or device.peak(size + max(1, size // 32)) > limit
    assert len(device.tried) == len(set(device.tried)) <= 24, "each size once, and few of them"
    assert max(device.tried) <= rows


def test_all_rows_are_tried_although_nearly_all_of_them_fit():
    for search in (Search(2.0, 65, 1), Search(2.0, 999, 1, max_bs=65), Search(2.0, 65, 64)):
        device = Device(each=0.03125, power=0.8)
        assert largest(search, device)[0] == 65 == device.tried[-1]


def test_a_line_through_the_peaks_saves_trials():
    device = Device(fixed=31.0, each=0.41, crash=195.0)
    assert largest(Search(130.0, rows=10**6, start_bs=128), device)[0] in range(235, 242)
    assert len(device.tried) <= 5


def test_a_soak_that_goes_wrong_backs_off_and_says_why():
    device, soaks = Device(), []
    changes = [
        {"oom": True, "message": "CUDA out of memory"},
        {"peak_gb": 10.5, "step_peak_gb": 10.5},
        *({"retried": True, "peak_gb": 9.9}, {"peak_gb": 9.9}),
    ]

    def soak(rows: int) -> dict:
        soaks.append(rows)
        return {**device(rows), **changes[len(soaks) - 1]}

    result = calibrate(Search(10.0, rows=10**6), device, soak)
    first, second, third, last = soaks
    assert first > second == first * 9 // 10 > third > last == result["batch_size"]
    assert result["limited_by"] == "soak" and result["peak_memory_gb"] == 9.9
    assert [entry["batch_size"] for entry in result["backed_off"]] == [first, second, third]
    signs = ("out of memory at step 1", "above the limit of 10.000 GB", "again")
    assert all(sign in entry["why"] for sign, entry in zip(signs, result["backed_off"], strict=True))


def test_a_soak_that_never_lasts_is_an_error():
    answer = {"oom": True, "steps": 0, "heaviest": {"step": 1}, "message": "tried to allocate 2 GB"}
    with pytest.raises(MillraceError, match="does not last: out of memory at step 1: tried to allocate 2 GB"):
        calibrate(Search(10.0, rows=1000, min_bs=8), Device(), lambda rows: answer)


@given(st.integers(1, 4000), st.floats(1.0001, 3))
def test_backing_off_always_shrinks(size, over):
    answer = {"oom": False, "peak_gb": 10.0 * over, "step_peak_gb": 10.0 * over, "fixed_gb": 2.0}
    # Also if setting up took most, so that the steps alone are below the limit.
    for changes in ({}, {"fixed_gb": 11.0}, {"step_peak_gb": 2.0}):
        assert backed_off_size(Search(10.0, rows=5000), size, {**answer, **changes}) < size


def test_what_limits_the_batch_is_said():
    searches = {"rows": Search(14.0, 50), "max_bs": Search(14.0, 500, max_bs=64), "memory": Search(10.0, 500)}
    for limit, search in searches.items():
        assert calibrate(search, Device(), None)["limited_by"] == limit
