"""Our own loaders go on exactly, whatever stops them and whoever goes on."""

from __future__ import annotations

import pytest

from tests.exactness.adapters import load
from tests.exactness.suite import Draw, judge, line


@pytest.mark.parametrize("name", ["millrace_tars", "millrace_buckets"])
@pytest.mark.parametrize(
    "plans, seed, processes",
    [
        (6, 1, 1),
        pytest.param(30, 2, 8, marks=pytest.mark.long),
        pytest.param(1000, 0, 8, marks=[pytest.mark.slow, pytest.mark.timeout(7200)]),
    ],
)
def test_no_sample_is_lost_or_repeated_in_random_plans(name, plans, seed, processes):
    result = judge(name, load(name), Draw(plans, seed, processes=processes))
    assert all([*counts] == ["exact"] for counts in result["counts"].values()), line(result)
    assert result["samples"] == {"lost": 0, "repeated": 0}
