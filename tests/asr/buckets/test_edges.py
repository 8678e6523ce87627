"""Bucket edges: the default, the exact optimum against brute force, and where every duration
belongs."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.asr.buckets.edges import (
    DEFAULT_EDGES,
    POLICIES,
    AutoEdges,
    GivenEdges,
    bucket_ids,
    edge_policy,
)
from millrace.asr.buckets.histogram import MAX_STEPS, DurationHistogram, bucket_of
from millrace.common.errors import MillraceError

ROOT = Path(__file__).parents[3]


def padded(counts: list[int], edges: tuple[float, ...]) -> float:
    """Padded steps when every row is padded to its bucket's upper edge, in the last to the longest
    row."""
    rows = [(at + 1, count) for at, count in enumerate(counts) if count]
    uppers = [*edges[1:-1], rows[-1][0] if rows else 1]
    return sum(count * next(upper for upper in uppers if length <= upper) for length, count in rows)


def histogram_of(counts: Sequence[int], step: float = 1.0) -> DurationHistogram:
    histogram = DurationHistogram(len(counts) * step, step)
    histogram.counts += np.asarray(counts)
    return histogram


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=9), st.integers(1, 5))
def test_auto_edges_are_the_optimum(counts: list[int], buckets: int) -> None:
    edges = histogram_of(counts).least_padding(buckets)
    assert edges[0] == 0 and edges[-1] == len(counts)
    assert list(edges) == sorted(set(edges)) and len(edges) - 1 <= buckets
    numbers = range(min(buckets, len(counts)))
    inner = (itertools.combinations(range(1, len(counts)), number) for number in numbers)
    choices = ((0, *chosen, len(counts)) for chosen in itertools.chain(*inner))
    assert padded(counts, edges) == min(padded(counts, choice) for choice in choices)


def test_every_duration_has_its_bucket() -> None:
    durations = [0.0001, 0.99, 2.999999, 3, 4.999, 5, 7, 10, 15, 19.99, 20, 29.999, 30, 31, 1e6]
    numbers = [0, 0, 0, 1, 1, 2, 3, 4, 5, 5, 6, 6, 6, 6, 6]
    assert bucket_of(np.array(durations), DEFAULT_EDGES).tolist() == numbers
    assert bucket_of(np.array([0.2, 1.0, 2.0]), (1.0, 2.0, 3.0)).tolist() == [0, 0, 1]
    assert " ".join(bucket_ids(DEFAULT_EDGES)) == "b_0_3 b_3_5 b_5_7 b_7_10 b_10_15 b_15_20 b_20_30"
    assert bucket_ids((0, 2.35, 30)) == ["b_0_2.35", "b_2.35_30"]


def test_histogram_steps_agree_with_auto_edges() -> None:
    """A duration right on a step lies above the edge there, in the histogram as in the bucket."""
    values = np.arange(1, 3000) / 100
    histogram = DurationHistogram(30.0)
    histogram.add(values)
    assert histogram.counts[0] == 0 and (histogram.counts[1:] == 1).all()
    edges = histogram.least_padding(12)
    steps = itertools.pairwise(round(edge * 100) for edge in edges)
    expected = [histogram.counts[low:high].sum() for low, high in steps]
    assert np.bincount(bucket_of(values, edges), minlength=12).tolist() == expected


def test_few_different_durations_need_few_buckets() -> None:
    counts = np.zeros(3000, np.int64)
    counts[[250, 800]] = 7
    assert histogram_of(counts, 0.01).least_padding(7) == (0.0, 2.51, 30.0)
    assert histogram_of(np.zeros(10, np.int64)).least_padding(3) == (0.0, 10.0)


@pytest.mark.parametrize(
    "edges", [[], [3.0], [0, 3, 3], [5, 3], [-1, 3], [0, float("nan")], [0, float("inf")]]
)
def test_edges_that_are_none_are_refused(edges: list[float]) -> None:
    with pytest.raises(MillraceError, match="rising"):
        GivenEdges(edges)


@pytest.mark.parametrize("last", [30.0, 60.0, 61.0, 7200.0, 1e6])
def test_the_steps_of_a_histogram_are_bounded(last: float) -> None:
    histogram = DurationHistogram(last)
    histogram.add(np.array([last / 8, last / 8, last * 0.999, last * 3]))
    assert len(histogram.counts) <= MAX_STEPS and histogram.counts.sum() == 4
    assert len(DurationHistogram(1e12).counts) <= MAX_STEPS
    edges = histogram.least_padding(2)
    assert edges[-1] == pytest.approx(last) and last / 8 < edges[1] <= last / 8 + 2 * histogram.step


def test_a_policy_is_named_or_a_list_of_edges() -> None:
    for choice in (
        "default",
        "seed",
        ["default"],
        DEFAULT_EDGES,
        [str(edge) for edge in DEFAULT_EDGES],
    ):
        policy = edge_policy(choice)
        assert policy == GivenEdges() and policy.last_edge == 30.0 and policy.as_dict() is None
        assert policy.known_before_build == policy.edges(DurationHistogram(30.0)) == DEFAULT_EDGES
    auto = edge_policy(["auto"], 3, 20.0)
    assert auto == AutoEdges(3, 20.0) and auto.as_dict() == {"num_buckets": 3, "last_edge": 20.0}
    assert auto.known_before_build is None and auto.edges(histogram_of([1, 1], 10.0)) == (
        0.0,
        10.0,
        20.0,
    )
    schema = yaml.safe_load((ROOT / "rules/schemas/asr.schema.yaml").read_text())
    assert set(schema["properties"]["edges"]["oneOf"][0]["enum"]) == set(POLICIES)
