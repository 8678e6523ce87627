"""Distances between tracks: of every pair of their shingles, reduced to one number."""

from __future__ import annotations

import torch
from torch import Tensor

from millrace.common.errors import MillraceError

_INF = float("inf")
_BEST_PAIRS = "bpwr-"


def parse_reduction(strategy: str) -> int | None:
    """N of `bpwr-N`, None of `min`; raises MillraceError for other reductions."""
    if strategy == "min":
        return None
    number = strategy.removeprefix(_BEST_PAIRS)
    if strategy.startswith(_BEST_PAIRS) and number.isdecimal() and int(number) > 0:
        return int(number)
    problem = f"there is no track reduction {strategy!r}"
    raise MillraceError(problem, remedy="Use min, or bpwr-N such as bpwr-5")


def shingle_distances(queries: Tensor, candidates: Tensor) -> Tensor:
    """Squared Euclidean distances (Q, K, S, R), divided by the dimension; in float32 also under
    autocast."""
    with torch.autocast(queries.device.type, enabled=False):
        left = queries.float().flatten(0, 1)
        right = candidates.float().flatten(0, 1)
        dimension = left.shape[1]

        # |a - b|^2 = |a|^2 - 2 ab + |b|^2 needs no array of differences.
        products = left @ right.T
        left_squares = left.square().sum(1, keepdim=True)
        right_squares = right.square().sum(1)
        squares = left_squares - 2 * products + right_squares
        # Rounding can make the distance of equal embeddings negative.
        distances = squares.relu() / dimension

    query_count, query_shingles, _ = queries.shape
    candidate_count, candidate_shingles, _ = candidates.shape
    by_track = distances.reshape(
        query_count,
        query_shingles,
        candidate_count,
        candidate_shingles,
    )
    return by_track.transpose(1, 2)


def reduced(distances: Tensor, strategy: str) -> Tensor:
    """(Q, K) of the distances (Q, K, S, R) of shingles; infinite ones take no part.

    min: the least of all pairs. bpwr-N: mean of the N best pairs without replacement, so that every
    shingle is in one pair at most; of as many as the shorter track has shingles, if it has fewer.
    """
    number = parse_reduction(strategy)
    if number is None:
        return distances.flatten(2).min(-1).values
    return _mean(_best_pairs(distances, number))


def _best_pairs(distances: Tensor, number: int) -> Tensor:
    """(Q, K, N) of (Q, K, S, R): the least distance, the least of other rows and columns, and so
    on.

    Infinite once no pair is free. The first of equal distances is taken; gradients reach the chosen
    pairs.
    """
    rows, columns = distances.shape[2:]
    count = min(rows, columns, number)

    pairs = distances.flatten(2)
    free = distances.detach().clone(memory_format=torch.contiguous_format)
    chosen = []
    for _ in range(count):
        least, pair = free.flatten(2).min(-1, keepdim=True)
        distance = pairs.gather(-1, pair)
        is_none_free = least == _INF
        chosen.append(distance.masked_fill(is_none_free, _INF))

        # Its shingles are in no other pair.
        row = (pair // columns).unsqueeze(-1)
        column = (pair % columns).unsqueeze(-1)
        whole_row = row.expand(-1, -1, 1, columns)
        whole_column = column.expand(-1, -1, rows, 1)
        free.scatter_(2, whole_row, _INF)
        free.scatter_(3, whole_column, _INF)
    return torch.cat(chosen, -1)


def _mean(values: Tensor) -> Tensor:
    """Mean over the last dimension of what is not infinite; infinite if nothing is."""
    counted = values != _INF  # NaN counts, and shows
    number = counted.sum(-1)
    total = values.masked_fill(~counted, 0).sum(-1)
    mean = total / number.clamp(min=1)
    return mean.masked_fill(number == 0, _INF)
