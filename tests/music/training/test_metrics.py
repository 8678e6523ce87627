"""MAP, MR1, ARP and their combination: upstream's, and those of examples by hand."""

from __future__ import annotations

import math

import pytest
import torch

from millrace.music.training.metrics import Tracks, means, retrieve, scores
from tests.music import seeded


def tracks(rows: slice = slice(None)) -> Tracks:
    return Tracks(*seeded.tracks())[rows]


@pytest.mark.parametrize("strategy", ["bpwr-5", "bpwr-10", "min"])
def test_figures_of_200_tracks_are_those_of_upstream(strategy):
    figures = means(retrieve(tracks(), tracks(), strategy))
    for name, value in seeded.expected()["retrieval"][strategy].items():
        # ARP and its root are in percent.
        unit = {"ARP": 100, "COMP": 10}.get(name, 1)
        assert figures[f"m_{name}"] / unit == pytest.approx(value / unit, abs=1e-6), name


def test_figures_by_hand():
    distances = torch.tensor([[0.1, 0.2, 0.3, 0.4, 0.5], [0.5, 0.4, 0.3, 0.2, math.inf]])
    relevant = torch.tensor([[1, 0, 1, 0, 0], [0, 0, 0, 1, 0]], dtype=torch.bool)
    figures = scores(distances, relevant)
    assert figures["MAP"].tolist() == pytest.approx([(1 + 2 / 3) / 2, 1])
    assert figures["MR1"].tolist() == [1, 1]
    # Before the relevant ones are 0 and 1 of the 3 others; a perfect ranking gives 0.
    assert figures["ARP"].tolist() == pytest.approx([100 / 6, 0])
    assert figures["COMP"].tolist() == pytest.approx([math.sqrt(100 / 6 * (1 - 5 / 6)), 0])
    assert means(figures)["m_MAP"] == pytest.approx(11 / 12)
    # Of equal distances the first candidate is before the others.
    tied = scores(torch.tensor([[0.1, 0.1, 0.1]]), torch.tensor([[False, False, True]]))
    assert tied["MR1"].tolist() == [3]


def test_a_query_whose_candidates_are_all_relevant_is_ranked_perfectly():
    figures = scores(torch.tensor([[0.1, 0.2]]), torch.tensor([[True, True]]))
    assert {name: value.item() for name, value in figures.items()} == {
        "MAP": 1,
        "MR1": 1,
        "ARP": 0,
        "COMP": 0,
    }


def test_figures_do_not_depend_on_how_much_is_computed_at_a_time():
    whole = retrieve(tracks(slice(20)), tracks(slice(40)), "bpwr-5")
    for size in (1, 144 * 7, 144 * 40 * 3):
        parts = retrieve(tracks(slice(20)), tracks(slice(40)), "bpwr-5", most_distances=size)
        assert all(torch.equal(whole[name], parts[name]) for name in whole)


def test_a_query_without_another_version_is_left_out():
    # Track 1 is recording 0 under another name: neither is the other's version.
    queries = tracks(slice(2))
    assert len(retrieve(queries, tracks(slice(2)), "min")["MAP"]) == 0
    assert math.isnan(means(retrieve(queries, tracks(slice(2)), "min"))["m_MAP"])
    assert len(retrieve(queries, tracks(slice(3)), "min")["MAP"]) == 2
    # A rank may have no query at all.
    figures = retrieve(tracks(slice(0)), tracks(slice(3)), "min")
    assert {name: len(values) for name, values in figures.items()} == dict.fromkeys(
        ("MAP", "MR1", "ARP", "COMP"), 0
    )
