"""Bucket edges, and where every duration belongs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import yaml

from millrace.asr.buckets.edges import DEFAULT_EDGES, NAMES, bucket_ids, bucket_of, edges_of
from tests.refusals import refused

ROOT = Path(__file__).parents[3]


def test_every_duration_has_its_bucket():
    durations = [0.0001, 0.99, 2.999999, 3, 4.999, 5, 7, 10, 15, 19.99, 20, 29.999, 30, 31, 1e6]
    numbers = [0, 0, 0, 1, 1, 2, 3, 4, 5, 5, 6, 6, 6, 6, 6]
    assert bucket_of(np.array(durations), DEFAULT_EDGES).tolist() == numbers
    assert bucket_of(np.array([0.2, 1.0, 2.0]), (1.0, 2.0, 3.0)).tolist() == [0, 0, 1]
    assert " ".join(bucket_ids(DEFAULT_EDGES)) == "b_0_3 b_3_5 b_5_7 b_7_10 b_10_15 b_15_20 b_20_30"
    assert bucket_ids((0, 2.35, 30)) == ["b_0_2.35", "b_2.35_30"]


@pytest.mark.parametrize(
    "edges",
    [[], [3.0], [0, 3, 3], [5, 3], [-1, 3], [0, float("nan")], [0, float("inf")], "auto", ["auto"]],
)
def test_edges_that_are_none_are_refused(edges):
    with refused("rising"):
        edges_of(edges)


@pytest.mark.parametrize("choice", ["default", "seed", ["default"], list(map(str, DEFAULT_EDGES))])
def test_edges_are_named_or_listed(choice):
    assert edges_of(choice) == DEFAULT_EDGES


def test_the_names_are_those_of_the_schema():
    schema = yaml.safe_load((ROOT / "rules/schemas/asr.schema.yaml").read_text())
    assert tuple(schema["properties"]["edges"]["oneOf"][0]["enum"]) == NAMES
