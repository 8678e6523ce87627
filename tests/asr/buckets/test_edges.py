"""Bucket edges: the seed's, the exact optimum against brute force, and where every duration belongs."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.asr.buckets import edges as be
from millrace.common.errors import MillraceError
from tests.bench.bench_buckets import seed_durations


def padded(counts: list[int], edges: tuple[float, ...]) -> float:
    """Padded steps when every row is padded to its bucket's upper edge, the last bucket to the longest
    row."""
    longest = max((at + 1 for at, count in enumerate(counts) if count), default=0)
    uppers = [*edges[1:-1], max(longest, 1)]
    return sum(
        count * next(upper for upper in uppers if at + 1 <= upper) for at, count in enumerate(counts) if count
    )


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=9), st.integers(1, 5))
def test_auto_edges_are_the_optimum(counts: list[int], buckets: int) -> None:
    edges = be.auto_edges(np.array(counts), buckets, step=1.0)
    assert edges[0] == 0 and edges[-1] == len(counts)
    assert list(edges) == sorted(set(edges)) and len(edges) - 1 <= buckets
    inner = range(1, len(counts))
    best = min(
        padded(counts, (0, *chosen, len(counts)))
        for number in range(min(buckets, len(counts)))
        for chosen in itertools.combinations(inner, number)
    )
    assert padded(counts, edges) == best


def test_auto_edges_pad_less_than_the_seeds() -> None:
    durations = seed_durations(200_000).astype(np.float64)
    histogram = be.DurationHistogram(30.0)
    histogram.add(durations)
    assert histogram.counts.sum() == len(durations)
    edges = be.auto_edges(histogram.counts, 7)
    assert len(edges) == 8 and edges[-1] == 30.0

    def padding(edges: tuple[float, ...]) -> float:
        upper = np.array(edges[1:])[be.bucket_of(durations, edges)]
        upper = np.minimum(upper, durations.max())
        return 1 - durations.sum() / upper.sum()

    assert padding(edges) < 0.9 * padding(be.SEED_EDGES)
    assert padding(edges) <= padding(be.auto_edges(histogram.counts, 6))


def test_every_duration_has_its_bucket() -> None:
    durations = [
        0.0001,
        0.99,
        2.999999,
        3.0,
        4.999,
        5.0,
        7.0,
        10.0,
        15.0,
        19.99,
        20.0,
        29.999,
        30.0,
        31.0,
        1e6,
    ]
    assert be.bucket_of(np.array(durations), be.SEED_EDGES).tolist() == [
        0,
        0,
        0,
        1,
        1,
        2,
        3,
        4,
        5,
        5,
        6,
        6,
        6,
        6,
        6,
    ]
    assert be.bucket_of(np.array([0.2, 1.0, 2.0]), (1.0, 2.0, 3.0)).tolist() == [0, 0, 1]
    assert be.bucket_ids(be.SEED_EDGES) == [
        "b_0_3",
        "b_3_5",
        "b_5_7",
        "b_7_10",
        "b_10_15",
        "b_15_20",
        "b_20_30",
    ]
    assert be.bucket_ids((0, 2.35, 30)) == ["b_0_2.35", "b_2.35_30"]


def test_histogram_steps_agree_with_auto_edges() -> None:
    """A duration right on a step lies above the edge there, in the histogram as in the bucket."""
    values = np.arange(1, 3000) / 100
    histogram = be.DurationHistogram(30.0)
    histogram.add(values)
    assert histogram.counts[0] == 0 and (histogram.counts[1:] == 1).all()
    edges = be.auto_edges(histogram.counts, 12)
    expected = [
        histogram.counts[round(low * 100) : round(high * 100)].sum()
        for low, high in itertools.pairwise(edges)
    ]
    assert np.bincount(be.bucket_of(values, edges), minlength=12).tolist() == expected


def test_few_different_durations_need_few_buckets() -> None:
    counts = np.zeros(3000, np.int64)
    counts[[250, 800]] = 7
    assert be.auto_edges(counts, 7) == (0.0, 2.51, 30.0)
    assert be.auto_edges(np.zeros(10, np.int64), 3, step=1.0) == (0.0, 10.0)


@pytest.mark.parametrize(
    "edges", [[], [3.0], [0, 3, 3], [5, 3], [-1, 3], [0, float("nan")], [0, float("inf")]]
)
def test_edges_that_are_none_are_refused(edges: list[float]) -> None:
    with pytest.raises(MillraceError, match="rising"):
        be.checked_edges(edges)


@pytest.mark.parametrize("last", [30.0, 60.0, 61.0, 7200.0, 1e6])
def test_the_steps_of_a_histogram_are_bounded(last: float) -> None:
    histogram = be.DurationHistogram(last)
    histogram.add(np.array([last / 8, last / 8, last * 0.999, last * 3]))
    assert len(histogram.counts) <= be.MOST_STEPS and histogram.counts.sum() == 4
    edges = be.auto_edges(histogram.counts, 2, histogram.step)
    assert edges[-1] == pytest.approx(last) and last / 8 < edges[1] <= last / 8 + 2 * histogram.step
