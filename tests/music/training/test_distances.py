"""Distances of tracks: as upstream's, and those of a plain loop where that leaves it to chance."""

from __future__ import annotations

import math

import pytest
import torch

from millrace.music.training.distances import reduced, shingle_distances
from millrace.music.training.metrics import Tracks, track_distances
from tests.music import seeded
from tests.refusals import refused


@pytest.mark.parametrize("strategy", seeded.REDUCTIONS)
@pytest.mark.parametrize("filling", ["all", "filled"])
def test_reductions_are_those_of_upstream(strategy, filling):
    values, queries, candidates = seeded.distances()
    if filling == "filled":
        values = values.masked_fill(queries[:, None, :, None] | candidates[:, None], math.inf)
    result = torch.tensor(seeded.expected()["reductions"][f"{strategy} {filling}"]).reshape(5, 6)
    torch.testing.assert_close(reduced(values, strategy), result, atol=1e-6, rtol=0)


def plain_best_pairs(values: torch.Tensor, number: int) -> float:
    """bpwr of one pair of tracks (S, R), one pair of shingles after the other."""
    cells = {(i, j): float(v) for i, row in enumerate(values) for j, v in enumerate(row)}
    chosen = []
    while cells and len(chosen) < number:
        row, column = min(cells, key=cells.get)
        if math.isinf(cells[row, column]):
            break
        chosen.append(cells[row, column])
        cells = {(i, j): v for (i, j), v in cells.items() if i != row and j != column}
    return sum(chosen) / len(chosen) if chosen else math.inf


@pytest.mark.parametrize("number", [1, 3, 10])
def test_best_pairs_use_each_shingle_once_also_if_distances_are_equal(number):
    # Four values only: most pairs are equal to others, as with a track that is filled up with
    # itself.
    values = (seeded.uniform("ties", 5, 4, 6, 3) * 4).floor()
    values[0, 0, :5], values[1, 1, :, 1:], values[2, 2] = math.inf, math.inf, math.inf
    result = reduced(values, f"bpwr-{number}")
    for query in range(5):
        for candidate in range(4):
            best = plain_best_pairs(values[query, candidate], number)
            assert float(result[query, candidate]) == pytest.approx(best)


def test_gradients_reach_the_chosen_pairs_only():
    values = torch.tensor([[[[0.1, 0.2], [0.3, 0.9], [0.4, 0.5]]]], requires_grad=True)
    reduced(values, "bpwr-2").sum().backward()
    assert values.grad[0, 0].tolist() == [[0.5, 0], [0, 0], [0, 0.5]]


def test_filling_changes_no_distance_and_a_track_of_filling_is_far_from_all():
    queries, candidates = (
        Tracks.of(range(5), range(5), list(seeded.uniform(n, 5, 6, 8))) for n in "qc"
    )
    queries.filled[0, 2:], candidates.filled[1, 3:], candidates.filled[2] = True, True, True
    first = Tracks.of([0], [0], [queries.embeddings[0, :2]])
    second = Tracks.of([1], [1], [candidates.embeddings[1, :3]])
    for strategy in seeded.REDUCTIONS:
        result = track_distances(queries, candidates, strategy)
        torch.testing.assert_close(result[:1, 1:2], track_distances(first, second, strategy))
        assert result[:, 2].isinf().all() and result[:, 3].isfinite().all()


def test_distances_are_squared_euclidean_by_dimension_and_never_negative():
    tracks = 100 + seeded.uniform("near", 4, 3, 64)
    distances = shingle_distances(tracks, tracks.half())
    assert distances.shape == (4, 4, 3, 3) and (distances >= 0).all()
    # Both in float32, whatever they were computed in.
    torch.testing.assert_close(
        shingle_distances(tracks.half(), tracks), distances.mT.transpose(0, 1)
    )
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(shingle_distances(tracks, tracks.half()), distances)
    left, right = tracks[1, 2].double(), tracks[3, 0].half().double()
    assert float(distances[1, 3, 2, 0]) == pytest.approx(
        float((left - right).square().mean()), abs=1e-2
    )


@pytest.mark.parametrize(
    "strategy", ["bpwr", "bpwr-", "bpwr-0", "min-3", "mean", "smin", "", "bpwr-x"]
)
def test_unknown_reductions_are_refused_with_those_that_exist(strategy):
    with refused(r"no track reduction .*Use min, or bpwr-N"):
        reduced(torch.zeros(1, 1, 1, 1), strategy)
