"""EpochPlans: from its state any number of ranks goes on, and every row of an epoch comes once."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from millrace.asr.planning.cut import BatchBudget
from millrace.asr.planning.epochs import EpochPlans, digest
from millrace.asr.planning.plan import Plan
from tests.refusals import refused

EPOCHS = 2


def plans_of(durations: list[np.ndarray], world_size: int = 2, **basis: Any) -> EpochPlans:
    basis = {"rows": digest(durations), "seconds": 20.0, "seed": 7, **basis}
    return EpochPlans(durations, BatchBudget(20.0), 7, world_size, basis)


def random_durations(rng: np.random.Generator) -> list[np.ndarray]:
    """Up to four buckets, of which some are empty, of up to 100 rows in all."""
    rows = int(rng.integers(1, 100))
    cuts = np.sort(rng.integers(0, rows + 1, 3))
    seconds = rng.uniform(0.2, 8.0, rows).astype(np.float32)
    return np.split(seconds, cuts)


def rows_of(plan: Plan, steps: range) -> list[int]:
    """What all ranks train on in these steps: fillers have no part in the loss."""
    places = [(step, rank) for step in steps for rank in range(plan.world_size)]
    real = [plan.batch(*place) for place in places if not plan.is_filler(*place)]
    return [row for rows in real for row in rows.tolist()]


def trained_through(rng: np.random.Generator) -> tuple[int, dict[int, list[int]], int]:
    """The number of rows, the rows of every epoch through random stops, and the changes."""
    durations = random_durations(rng)
    plans = plans_of(durations)
    seen = {epoch: [] for epoch in range(EPOCHS)}
    state = None
    changes = 0
    while True:
        plans = replace(plans, world_size=int(2 ** rng.uniform(0, 6.02)))  # 1 to 64, often few
        plan, step = plans.resumed(json.loads(json.dumps(state))) if state else (plans(0), 0)
        # Often few steps or none, so that stops come one after the other inside an epoch.
        left = int(rng.choice([0, 1, 1, 2, 8]))
        while True:
            end = min(len(plan), step + left)
            seen[plan.epoch] += rows_of(plan, range(step, end))
            left -= end - step
            step = end
            # At an epoch's end, a stop comes before the next epoch is planned or after it.
            if step < len(plan) or (left == 0 and rng.random() < 0.5):
                break
            if plan.epoch == EPOCHS - 1:
                return sum(map(len, durations)), seen, changes
            plan, step = plans(plan.epoch + 1), 0
        state = plans.state(plan, step)
        changes += 1


@pytest.mark.parametrize(
    "numbers", [range(100), pytest.param(range(100, 1000), marks=pytest.mark.long)]
)
def test_every_row_of_each_epoch_comes_once_through_random_stops_and_ranks(numbers):
    changes = 0
    for number in numbers:
        rows, seen, stops = trained_through(np.random.default_rng(number))
        changes += stops
        for epoch in range(EPOCHS):
            assert sorted(seen[epoch]) == list(range(rows)), f"plan {number}, epoch {epoch}"
    assert changes > 2 * len(numbers)


DURATIONS = [np.full(300, 2.0, np.float32), np.full(200, 3.0, np.float32)]


def test_a_state_of_many_changes_is_small_and_the_same_on_every_rank():
    plans = plans_of(DURATIONS)
    plan, step = plans(0), 0
    for world_size in (3, 2, 1, 5, 2, 7, 64):
        state = plans.state(plan, step + 1)
        plans = replace(plans, world_size=world_size)
        plan, step = plans.resumed(state)
    assert len(plan.spans) == 7
    assert len(json.dumps(plans.state(plan, 0))) < 500


def test_ranks_that_did_nothing_leave_no_trace():
    plans = plans_of(DURATIONS)
    state = plans.state(plans(0), 4)
    others = replace(plans, world_size=5)
    plan, step = plans.resumed(others.state(*others.resumed(state)))
    assert (plan.crc32, step) == (plans(0).crc32, 4)
    assert replace(plan, world_size=3).crc32 != plan.crc32


def test_after_an_epochs_end_other_ranks_have_nothing_left_of_it():
    plans = plans_of(DURATIONS)
    state = plans.state(plans(1), len(plans(1)))
    for world_size in (3, 4, 2):
        plans = replace(plans, world_size=world_size)
        plan, step = plans.resumed(state)
        assert (plan.epoch, plan.world_size, step) == (1, world_size, len(plan))
        state = plans.state(plan, step)


def test_a_state_that_lacks_what_this_loader_rests_on_is_refused_by_its_name():
    plans = plans_of(DURATIONS)
    state = plans.state(plans(0), 1)
    with refused("taken with split None, and the loader has dev"):
        plans_of(DURATIONS, 3, split="dev").resumed(state)
    state = plans_of(DURATIONS, split="dev").state(plans(0), 1)
    with refused("taken with split dev, and the loader has None"):
        plans.resumed(state)


def test_rows_that_moved_into_another_bucket_change_the_digest():
    rows = np.concatenate(DURATIONS[:2])
    digests = {digest([rows[:number], rows[number:]]) for number in (1, 2)}
    assert len({*digests, digest([rows])}) == 3


def test_a_state_whose_plan_would_be_another_one_now_is_refused():
    plans = plans_of(DURATIONS)
    state = plans.state(plans(0), 1)
    for change in ({"plan_crc32": 1}, {"step": 1000}, {"step": -1}):
        with refused("epoch 0 belongs to another plan"):
            replace(plans, world_size=3).resumed({**state, **change})


@pytest.mark.parametrize(
    "change",
    [
        {"epoch": "first"},
        {"epoch": True},
        {"step": 1.5},
        {"step": float("inf")},
        {"world_size": 0},
        {"world_size": 2.5},
        {"spans": [[0, 1]]},
        {"spans": [[2]]},
        {"spans": [[2, -5]]},
    ],
)
def test_a_state_with_other_than_whole_numbers_or_no_ranks_is_refused(change):
    plans = plans_of(DURATIONS)
    with refused("this is no state of a loader"):
        plans.resumed({**plans.state(plans(0), 1), **change})


@pytest.mark.parametrize("state", [{}, {"epoch": 0, "step": 1}, []])
def test_what_is_no_state_is_refused(state):
    with refused("this is no state of a loader"):
        plans_of(DURATIONS).resumed(state)


def test_a_state_of_release_0_4_goes_on_with_as_many_ranks():
    plans = plans_of(DURATIONS)
    plan = plans(1)
    state = {"epoch": 1, "step": 3, "plan_crc32": plan.crc32}
    assert plans.resumed(state)[1] == 3
    with refused("belongs to another plan"):
        replace(plans, world_size=3).resumed(state)


@pytest.mark.parametrize(
    "durations, words",
    [
        ([], "there are no rows to plan"),
        ([1.0, np.nan], "a duration is not finite and above 0"),
    ],
)
def test_what_can_never_be_planned_is_refused_before_a_plan_is_asked_for(durations, words):
    with refused(words):
        EpochPlans([np.array(durations, np.float32)], BatchBudget(20.0), 7, 1, {})


def test_the_checksum_of_a_plan_tells_its_rows_its_ranks_and_where_batches_end():
    plan = plans_of(DURATIONS)(0)
    others = [
        replace(plan, rows=plan.rows[::-1].copy()),
        replace(plan, offsets=plan.offsets + np.arange(len(plan.offsets)) % 2),
        replace(plan, world_size=plan.world_size + 1),
    ]
    assert len({each.crc32 for each in (plan, *others)}) == 4
