"""The search for the batch size, on devices that a formula stands for."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from millrace.asr.calibration.search import Search, calibrate, largest
from tests.refusals import refused


@dataclass
class Device:
    """n rows take fixed + each * n ** power GB, and more by jumps (row, GB) as workspaces do;
    `noise` is a share.

    Above `crash` GB a trial is out of memory, and then there is no peak.
    """

    fixed: float = 1.0
    each: float = 0.1
    power: float = 1.0
    crash: float = 15.0
    at_first: float = 1.0  # the share of `fixed` before the first step, without optimiser's state
    jumps: tuple[tuple[int, float], ...] = ()
    noise: float = 0.0
    seed: int = 0
    tried: list[int] = field(default_factory=list)

    def peak(self, rows: int) -> float:
        exact = self.fixed + self.each * rows**self.power
        exact += sum(more for first, more in self.jumps if rows >= first)
        return exact * (1 + self.noise * random.Random(f"{self.seed} {rows}").uniform(-1, 1))

    def __call__(self, rows: int) -> dict:
        self.tried.append(rows)
        peak = self.peak(rows)
        heaviest = {"step": 1, "rows": rows, "seconds": 9.9, "characters": 100}
        if peak > self.crash:
            message = "tried to allocate 2 GB"
            return {"oom": True, "steps": 0, "heaviest": heaviest, "message": message}
        peaks = {"peak_gb": peak, "step_peak_gb": peak, "fixed_gb": self.fixed * self.at_first}
        return {"oom": False, "steps": 5, "heaviest": heaviest, **peaks}


@st.composite
def devices(draw: st.DrawFn) -> tuple[float, Device]:
    """A limit, and a device that is out of memory there, or above."""
    limit, each = draw(st.floats(2, 140)), draw(st.floats(1e-3, 5))
    power, crash = draw(st.sampled_from([0.8, 1.0, 1.3])), draw(st.sampled_from([1.0, 1.5, 100.0]))
    return limit, Device(draw(st.floats(0.5, 1.9)), each, power, crash * limit)


@given(limit_and_device=devices(), start=st.integers(1, 300), rows=st.integers(1, 5000))
def test_the_batch_fits_and_one_in_thirty_two_more_does_not(limit_and_device, start, rows):
    limit, device = limit_and_device
    search = Search(limit, rows=rows, start_bs=start)
    if device.peak(1) > limit:
        with refused("a batch of 1 does not fit"):
            largest(search, device)
        return
    size, trials = largest(search, device)
    assert [trial["rows"] for trial in trials] == device.tried
    assert device.peak(size) <= limit and size in device.tried
    assert size == search.max_rows or device.peak(size + 1 + size // 32) > limit
    assert len(device.tried) == len(set(device.tried)) <= 12, "each size once, and few of them"
    assert max(device.tried) <= rows


@st.composite
def uneven_devices(draw: st.DrawFn) -> Device:
    """Devices whose largest batch is anywhere from 1 row to above 4,096."""
    limit = draw(st.floats(20, 140))
    fixed = limit * draw(st.floats(0.02, 0.7))
    power = draw(st.sampled_from([1.0, 1.1, 1.4, 2.0]))
    largest_rows = math.exp(draw(st.floats(0.1, 8.5)))
    each = (limit - fixed) / largest_rows**power
    jump = st.tuples(st.integers(2, math.ceil(largest_rows) + 2), st.floats(0, (limit - fixed) / 2))
    jumps, noise = draw(st.lists(jump, max_size=3)), draw(st.sampled_from([0.0, 0.02]))
    seed = draw(st.integers(0, 10**6))
    return Device(fixed, each, power, limit, 0.25, tuple(jumps), noise, seed)


@settings(max_examples=1000, deadline=None)
@given(
    device=uneven_devices(),
    start=st.sampled_from([1, 8, 32, 300]),
    rows=st.sampled_from([77, 3000, 10**6]),
)
def test_few_trials_find_the_batch_where_memory_that_ran_out_has_no_peak(device, start, rows):
    limit = device.crash
    search = Search(limit, rows=rows, start_bs=start)
    assume(device.peak(1) <= limit)
    size, trials = largest(search, device)
    assert len(trials) <= 13 and device.peak(size) <= limit
    # Noise may let a larger one pass: all are sure to fit below the first that does not.
    fails = (n for n in range(1, search.max_rows + 1) if device.peak(n) > limit)
    sure = next(fails, search.max_rows + 1) - 1
    assert size >= sure * 31 / 32


@pytest.mark.parametrize(
    "device, start, most",
    [
        (Device(27.0, 0.5, 1.0, 130.0, 0.25), 32, 5),
        (Device(10.0, 0.0065, 1.45, 130.0, 0.25), 32, 9),
        (Device(31.0, 0.7, 1.0, 130.0, 0.25, ((120, 20.0),)), 32, 8),
        (Device(20.0, 0.1, 1.0, 130.0, 0.25, ((600, 20.0),)), 32, 10),
        (Device(20.0, 0.1, 1.0, 130.0, 0.25, ((600, 60.0),)), 32, 9),
        (Device(10.0, 0.05, 1.3, crash=195.0), 8, 6),
        # The first batch is far too large; it has a peak, or none.
        (Device(31.0, 5.0, 0.8, crash=13_000.0), 300, 5),
        (Device(31.0, 2.0, 1.3, crash=195.0), 300, 5),
    ],
)
def test_memory_that_grows_in_no_straight_line_takes_few_trials(device, start, most):
    size, trials = largest(Search(130.0, rows=10**6, start_bs=start), device)
    assert device.peak(size) <= 130.0 < device.peak(size + 1 + size // 32)
    assert len(trials) <= most


def test_all_rows_are_tried_although_nearly_all_of_them_fit():
    for search in (Search(2.0, 65, 1), Search(2.0, 999, 1, max_bs=65), Search(2.0, 65, 64)):
        device = Device(each=0.03125, power=0.8)
        assert largest(search, device)[0] == 65 == device.tried[-1]


def test_a_soak_that_goes_wrong_backs_off_and_says_why(caplog):
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
    signs = ("out of memory at step 1", "above the limit of 10.000 GB", "again")
    for sign, line in zip(signs, caplog.messages[-3:], strict=True):
        assert sign in line


def test_no_batch_below_the_smallest_is_tried():
    device = Device()
    assert largest(Search(100.0, rows=50, start_bs=4, min_bs=16), device)[0] == 50
    assert min(device.tried) == 16
    # A bucket of fewer rows repeats them.
    assert largest(Search(100.0, rows=3, min_bs=16), device)[0] == 16

    lasting = {"oom": False, "peak_gb": 1.0, "steps": 1}
    soaks = iter([{"oom": True, "heaviest": {}}, lasting])
    found = calibrate(Search(100.0, rows=20, min_bs=18), device, lambda rows: next(soaks))
    assert (found["batch_size"], found["limited_by"]) == (18, "soak")


def test_a_soak_that_never_lasts_is_an_error():
    answer = {"oom": True, "steps": 0, "heaviest": {"step": 1}, "message": "tried to allocate 2 GB"}
    with refused("does not last: out of memory at step 1: tried to allocate 2 GB"):
        calibrate(Search(10.0, rows=1000, min_bs=8), Device(), lambda rows: answer)


def test_what_limits_the_batch_is_said():
    of_rows, of_max_bs = Search(14.0, 50), Search(14.0, 500, max_bs=64)
    searches = {"rows": of_rows, "max_bs": of_max_bs, "memory": Search(10.0, 500)}
    for limit, search in searches.items():
        assert calibrate(search, Device(), None)["limited_by"] == limit
