"""Our own loaders go on exactly, whatever stops them and whoever goes on."""

from __future__ import annotations

import pytest

from tests.exactness.adapters import load
from tests.exactness.suite import Draw, judge, line

LOADERS = ["millrace_tars", "millrace_buckets"]


def assert_exact(name: str, plans: int, seed: int, processes: int) -> None:
    adapter = load(name)
    result = judge(name, adapter, Draw(plans, seed, processes=processes))
    assert all([*counts] == ["exact"] for counts in result["counts"].values()), line(result)
    assert result["samples"] == {"lost": 0, "repeated": 0}


@pytest.mark.parametrize("name", LOADERS)
def test_no_sample_is_lost_or_repeated_in_six_plans(name):
    assert_exact(name, 6, seed=1, processes=1)


@pytest.mark.long
@pytest.mark.parametrize("name", LOADERS)
def test_no_sample_is_lost_or_repeated_in_thirty_plans_of_many_workers(name):
    assert_exact(name, 30, seed=2, processes=8)


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("name", LOADERS)
def test_no_sample_is_lost_or_repeated_in_a_thousand_plans(name):
    assert_exact(name, 1000, seed=0, processes=8)
