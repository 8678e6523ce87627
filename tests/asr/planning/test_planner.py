"""The batch plan: every row once, budgets kept, ranks even, pure, resumable, also with other
ranks."""

from __future__ import annotations

import doctest
import hashlib
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.asr.buckets.edges import DEFAULT_EDGES, bucket_of
from millrace.asr.planning import planner
from millrace.asr.planning.cut import BatchBudget, batch_cost
from millrace.asr.planning.plan import Plan
from millrace.asr.planning.planner import every_bucket_first, plan_epoch, plan_rest, replan
from tests.bench.bench_buckets import seed_durations
from tests.refusals import refused

BUDGET = BatchBudget(240.0)


def buckets(rows) -> list[np.ndarray]:
    durations = seed_durations(rows)
    number = bucket_of(durations, DEFAULT_EDGES)
    return [durations[number == at] for at in range(len(DEFAULT_EDGES) - 1)]


def seen(plan: Plan, first: int = 0, last: int | None = None) -> np.ndarray:
    """Rows of all ranks' batches of the steps, without fillers."""
    steps = range(first, len(plan) if last is None else last)
    parts = [
        plan.batch(s, r) for s in steps for r in range(plan.world_size) if not plan.is_filler(s, r)
    ]
    return np.concatenate([np.zeros(0, np.int64), *parts])


def assert_once(rows: np.ndarray, total: int) -> None:
    assert np.array_equal(np.sort(rows), np.arange(total))


def digest(plan: Plan) -> str:
    result = hashlib.sha256()
    for name in ("rows", "offsets", "longest", "seconds", "bucket", "fillers"):
        result.update(np.ascontiguousarray(getattr(plan, name)).tobytes())
    return result.hexdigest()


def test_the_example_of_the_docstring_gives_what_it_says():
    assert doctest.testmod(planner) == (0, 3)


def test_bars_on_the_seeds_durations():
    parts = buckets(400_000)
    plan = plan_epoch(parts, BUDGET, 42, 0, 8)
    stats = plan.stats()
    assert stats["padding"] < 0.01 and stats["useful_work"] >= 0.98
    assert stats["split_batches"] < 8 and stats["rows"] == 400_000
    # The figures again, from the batches themselves.
    durations = np.concatenate(parts).astype(np.float64)
    longest = np.array(
        [[durations[plan.batch(s, r)].max() for r in range(8)] for s in range(len(plan))]
    )
    counts = np.diff(plan.offsets).reshape(longest.shape)
    cost = batch_cost(counts, longest)
    assert cost.sum() / (8 * cost.max(axis=1).sum()) == pytest.approx(
        stats["useful_work"], abs=1e-4
    )
    assert 1 - durations.sum() / (counts * longest).sum() == pytest.approx(
        stats["padding"], abs=1e-4
    )
    assert (counts * longest <= 240.0).all()


def test_batches_stay_in_their_bucket_and_under_every_limit():
    parts = buckets(30_000)
    budgets = [BatchBudget(240.0, cost=200.0, rows=20 + 5 * number) for number in range(len(parts))]
    plan = plan_epoch(parts, budgets, 1, 2, 4, window=2000)
    ends = np.cumsum([len(part) for part in parts])
    durations = np.concatenate(parts).astype(np.float64)
    for step, rank in np.ndindex(len(plan), 4):
        rows = plan.batch(step, rank)
        (bucket,) = set(np.searchsorted(ends, rows, side="right").tolist())
        longest = durations[rows].max()
        assert bucket == plan.bucket[step * 4 + rank] and len(rows) <= 20 + 5 * bucket
        assert len(rows) * longest <= 240.0 and batch_cost(len(rows), longest) <= 200.0
    # Divided, the limit is 79 rows, which are longer than it by rounding.
    assert BatchBudget(seconds=240.0).most_rows(np.array([240 / 79])).tolist() == [78]


def test_all_buckets_are_drawn_all_the_time():
    plan = plan_epoch(buckets(200_000), BUDGET, 3, 0, 8)
    bucket = plan.bucket[::8]
    whole = np.bincount(bucket, minlength=7)
    for tenth in np.array_split(bucket, 10):
        assert (np.abs(np.bincount(tenth, minlength=7) - whole / 10)[:6] <= 3).all()


def test_pure_in_seed_epoch_and_world_size_across_processes():
    code = (
        "from tests.asr.planning.test_planner import *;"
        "plan = plan_epoch(buckets(5000), BUDGET, 5, 3, 4);"
        "print(digest(plan), digest(replan(plan, 2, 6)))"
    )
    plan = plan_epoch(buckets(5000), BUDGET, 5, 3, 4)
    other_seed = "1" if os.environ.get("PYTHONHASHSEED") == "0" else "0"
    environment = {**os.environ, "PYTHONHASHSEED": other_seed}
    printed = subprocess.check_output([sys.executable, "-c", code], env=environment, text=True)
    assert printed.split() == [digest(plan), digest(replan(plan, 2, 6))]
    others = [plan_epoch(buckets(5000), BUDGET, *of) for of in ((6, 3, 4), (5, 4, 4), (5, 3, 5))]
    assert len({digest(plan), *map(digest, others)}) == 4


def test_the_shuffle_is_pinned():
    """A plan made on another machine or with another numpy must be this one: a resumed run depends
    on it."""
    plan = plan_epoch(
        [np.arange(1, 41, dtype=np.float32) / 4], BatchBudget(20.0), 42, 1, 2, window=16
    )
    assert digest(plan)[:16] == "210976566fc38dbc"
    # Of so many batches that other ranks deal them in several groups.
    long = plan_epoch(
        [np.arange(1, 1001, dtype=np.float32) / 4], BatchBudget(None, rows=2), 42, 1, 2
    )
    assert digest(replan(long, 3, 3))[:16] == "e1b1acdcc5818179"


def test_epochs_put_other_rows_together():
    plans = [plan_epoch(buckets(20_000), BUDGET, 0, epoch, 1, window=5000) for epoch in range(2)]
    first, second = (
        {(rows[0], row) for rows in plan.batches(0) for row in rows[1:]} for plan in plans
    )
    assert len(first & second) < 0.05 * len(first)


def test_resume_with_the_same_world_size_is_the_same_plan():
    parts = buckets(4000)
    rest = plan_rest(lambda ranks: plan_epoch(parts, BUDGET, 1, 0, ranks), [(4, 7)], 4)
    assert digest(rest) == digest(plan_epoch(parts, BUDGET, 1, 0, 4))
    plan = plan_epoch(parts, BUDGET, 1, 0, 4)
    for done, ranks in ((len(plan) + 1, 2), (0, 0)):
        with refused("nothing to plan"):
            replan(plan, done, ranks)


odd_seconds = st.floats(0.0078125, 40, width=32) | st.sampled_from(
    [5.0, 240.0, 240.5, 1e6, 3e38, 1e-30]
)
odd_budgets = [BUDGET, BatchBudget(None, rows=3), BatchBudget(60.0, cost=30.0, rows=7)]
odd_budgets += [BatchBudget(None, cost=1e-3)]


@settings(max_examples=120, deadline=None)
@given(
    st.lists(st.lists(odd_seconds, max_size=60), min_size=1, max_size=4).filter(any),
    *(st.integers(1, 9), st.integers(1, 30), st.integers(0, 2**63)),
    st.sampled_from(odd_budgets),
)
def test_odd_rows_are_planned_once_with_equal_steps(parts, world, window, seed, budget):
    lengths = [np.array(part, dtype=np.float32) for part in parts]
    durations = np.concatenate(lengths).astype(np.float64)
    plan = plan_epoch(lengths, budget, seed, 0, world, window=window)
    assert_once(seen(plan), len(durations))
    assert len(plan) * world == len(plan.offsets) - 1
    for step, rank in np.ndindex(len(plan), world):
        rows = plan.batch(step, rank)
        assert len(rows) > 0
        if not plan.is_filler(step, rank):
            fits = budget.most_rows(np.array([durations[rows].max()]))[0]
            assert len(rows) <= max(fits, 1)
    stats = plan.stats()
    # Rows are repeated only where they cannot fill the steps at all, and never a whole step of
    # them.
    assert stats["filler_batches"] < world
    if stats["filler_batches"]:
        assert len(durations) < len(plan) * world and (np.diff(plan.offsets) <= 1).all()
    if len(plan) > 1:
        rest = replan(plan, len(plan) // 2, max(1, world - 1))
        assert_once(np.concatenate([seen(plan, 0, len(plan) // 2), seen(rest)]), len(durations))


def test_fewer_rows_than_ranks_are_repeated_as_fillers_and_named():
    plan = plan_epoch([np.array([3.0, 4.0, 5.0], np.float32)], BUDGET, 0, 0, 8)
    assert sum(plan.is_filler(0, rank) for rank in range(8)) == 5 == plan.stats()["filler_batches"]
    assert_once(seen(plan), 3)
    assert len(plan) == 1 and all(len(plan.batch(0, rank)) == 1 for rank in range(8))
    # The cheapest is repeated, and counts once.
    repeated = [plan.batch(0, rank).tolist() for rank in range(8) if plan.is_filler(0, rank)]
    assert repeated == [[0]] * 5
    # One rank has no use for them.
    assert len(replan(plan, 0, 1)) == 3


def test_rows_over_the_budget_are_batches_of_their_own_and_others_are_split_to_fill_the_steps():
    parts = [
        np.array([1.0, 2.0, 2.5, 300.0], np.float32),
        np.array([250.0, 260.0, 3.0], np.float32),
    ]
    stats = plan_epoch(parts, BUDGET, 0, 0, 4).stats()
    assert (stats["rows"], stats["split_batches"], stats["filler_batches"]) == (7, 2, 1)
    # More batches than are put together at once.
    assert_once(plan_epoch([np.full(66_000, 300.0, np.float32)], BUDGET, 0, 0, 1).rows, 66_000)


def test_the_fewest_steps_are_broken_up_for_rows_of_the_last_ones():
    rows = np.array([*[1] * 4, *[10] * 4, 1])
    steps = np.arange(8).reshape(2, 4)
    whole, left = planner._add_rows(steps, np.array([8]), rows, world=4)
    assert (whole.tolist(), left.tolist()) == ([0], [8, 4, 5, 6, 7])


def test_rows_of_nearly_one_duration_meet_others_in_the_next_epoch():
    durations = [np.linspace(10, 10.01, 64, dtype=np.float32)]
    first, second = (plan_epoch(durations, BatchBudget(None, rows=8), 0, at, 1) for at in (0, 1))
    batches = [
        {frozenset(plan.batch(step, 0).tolist()) for step in range(8)} for plan in (first, second)
    ]
    assert len(batches[0]) == 8 and not batches[0] & batches[1]


def test_arguments_that_cannot_be_planned_are_refused():
    for seconds in ([], [1, np.nan], [0.0], [np.inf], [-1.0]):
        with refused(r"no rows|finite and above 0"):
            plan_epoch([np.array(seconds)], BUDGET, 0, 0, 1)
    good = [np.array([1.0, 2.0], np.float32)]
    for budget, world, message in (([BUDGET, BUDGET], 1, "budgets"), (BUDGET, 0, "world size")):
        with refused(message):
            plan_epoch(good, budget, 0, 0, world)
    for seconds in (None, 0.0, np.nan, "240"):
        with refused(r"limit|seconds is .*\. Give a number above 0"):
            BatchBudget(seconds)
    with refused("rows is 0"):
        BatchBudget(2.0, rows=0)
    with pytest.raises(IndexError):
        plan_epoch(good, BUDGET, 0, 0, 1).batch(5, 0)


@pytest.mark.parametrize("world_size", [1, 3])
def test_a_check_takes_a_step_of_every_bucket_first_and_then_all_others(world_size):
    durations = [part[:200] for part in buckets(4000)]
    durations[2] = durations[2][:1]
    plan = plan_epoch(durations, BUDGET, seed=1, epoch=0, world_size=world_size)
    changed = every_bucket_first(plan)
    assert len(changed) == len(plan) and not changed.is_filler(0, 0)
    ranks = range(world_size)
    batches = [
        [tuple(of.batch(step, rank)) for step in range(len(of)) for rank in ranks]
        for of in (plan, changed)
    ]
    assert sorted(batches[0]) == sorted(batches[1])
    bucket_of = dict(zip(batches[0], plan.bucket.tolist(), strict=True))
    first = [bucket_of[batch] for batch in batches[1][: len(durations) * world_size]]
    assert set(first) == set(plan.bucket) and 2 in first[:world_size]
