"""The memory model: fitted exactly where it holds, never negative, and budgets that keep its
promise."""

from __future__ import annotations

from dataclasses import astuple

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from millrace.asr.calibration.memory_model import (
    MemoryModel,
    Point,
    budget_of,
    fit,
    worst_underestimate,
)
from millrace.asr.planning.cut import BatchBudget

squared, of_text = st.sampled_from([0.0, 1e-4, 3e-3]), st.sampled_from([0.0, 1e-5, 2e-4])
models = st.builds(MemoryModel, st.floats(0.3, 40), st.floats(1e-4, 0.1), squared, of_text)
LENGTHS = ((2.9, 40), (4.9, 55), (9.8, 160), (14.7, 150), (29.0, 480))
SHAPES = [(n, t, c) for t, c in LENGTHS for n in (2, 8, 16, 23)]


def points_of(model: MemoryModel, noise: float = 0.0) -> list[Point]:
    rng = np.random.default_rng(5)
    return [
        Point(n, t, c, model.predict(n, t, c) * (1 + noise * rng.uniform(-1, 1)))
        for n, t, c in SHAPES
    ]


@given(models)
def test_the_fit_finds_the_formula_that_made_the_peaks(model):
    points = points_of(model)
    fitted = fit(points)
    assert worst_underestimate(fitted, points) <= 1e-6
    assert fitted.predict(11, 7.3, 100) == pytest.approx(model.predict(11, 7.3, 100), rel=1e-4)


def test_the_worst_underestimate_is_that_of_the_point_with_the_highest_peak_above_the_model():
    model = MemoryModel(1.0, 0.1, 0.0, 0.0)
    points = [Point(10, 4.0, 0, peak) for peak in (4.0, 5.0, 6.25)]
    assert worst_underestimate(model, points) == 0.2
    assert worst_underestimate(model, points[:1]) == 0.0


@given(models, st.integers(0, 5))
def test_the_fit_is_the_non_negative_least_squares_solution(model, drop):
    points = points_of(model, noise=0.05)[drop:]
    fitted = fit(points)
    values = np.array(astuple(fitted))
    rows, seconds, characters, peaks = np.array(points).T
    columns = np.stack([rows / rows, rows * seconds, rows * seconds**2, rows * characters], axis=1)
    columns /= peaks[:, None]
    columns /= np.abs(columns).max(axis=0)
    predicted = [fitted.predict(*shape) for *shape, _ in points]
    gradient = columns.T @ (predicted / peaks - 1)
    assert (values >= 0).all()
    # Karush-Kuhn-Tucker: no way down along a used column, nor into the positive along an unused
    # one.
    assert np.abs(gradient[values > 0]).max(initial=0) < 1e-6
    assert gradient[values == 0].min(initial=0) > -1e-6


def test_one_bucket_alone_predicts_its_own_batches():
    model = MemoryModel(1.5, 0.02, 0.0, 0.0)
    points = [Point(n, 9.9, 120, model.predict(n, 9.9, 120)) for n in (4, 8, 16)]
    assert fit(points).predict(32, 9.9, 120) == pytest.approx(model.predict(32, 9.9, 120), rel=1e-6)
    assert astuple(fit(points)) == pytest.approx(astuple(model), abs=1e-9), "with the fewest terms"
    assert fit(points[:1]).predict(4, 9.9, 120) == pytest.approx(points[0].peak_gb)


@given(
    models,
    st.floats(0.2, 25),
    st.floats(1.01, 4),
    st.integers(0, 400),
    st.integers(1, 500),
    st.floats(0.6, 3),
)
@example(MemoryModel(2.0, 1e-4, 0.0, 2e-3), 2.0, 2.0, 200, 20, 0.99975)
def test_no_batch_within_a_budget_is_predicted_above_the_limit(
    model, shortest, spread, characters, rows, share
):
    """`share`: of what the calibrated rows take; above 1 where the rows have ended the search."""
    longest = shortest * spread
    batch = model.predict(rows, longest, characters) - model.fixed_gb
    limit = model.fixed_gb + share * batch
    lengths = np.linspace(shortest, longest, 97)
    most = BatchBudget(**budget_of(model, limit, rows, shortest, longest, characters)).most_rows(
        lengths
    )
    predicted = model.fixed_gb + most * model.per_sample(lengths, characters)
    # A row alone is always let in.
    assert predicted.max() <= max(limit, model.predict(1, longest, characters)) * 1.001
    # And nothing is given away: the longest fill their calibrated batch but for the rounding.
    assert (most >= most[-1]).all() and most[-1] <= rows


@pytest.mark.parametrize(
    "squared, limit, rows",
    [
        (0.001, 14.0, [43, 20]),  # 12 GB are free: 0.275 GB for 5 s, 0.6 GB for 10 s
        (0.0, 12.0, [40, 20]),  # 10 GB: 0.25 and 0.5
    ],
)
def test_shorter_samples_get_larger_batches(squared, limit, rows):
    model = MemoryModel(2.0, 0.05, squared, 0.0)
    limits = budget_of(model, limit, 20, 5.0, 10.0, 0)
    assert BatchBudget(**limits).most_rows(np.array([5.0, 10.0])).tolist() == rows
    # A sample of no length takes nothing from the others.
    limits = budget_of(model, limit, 20, 0.01, 10.0, 0)
    assert budget_of(model, limit, 20, 0.0, 10.0, 0) == limits


def test_a_model_that_says_nothing_leaves_the_calibrated_rows():
    for model in (MemoryModel(2.0, 0.0, 0.0, 0.0), MemoryModel(11.0, 0.1, 0.0, 0.0)):
        assert budget_of(model, 10, 24, 3, 5, 10) == {"seconds": None, "cost": None, "rows": 24}
