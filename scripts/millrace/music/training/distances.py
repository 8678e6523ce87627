"""Distances between tracks: of every pair of their shingles, reduced to one number."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from millrace.common.errors import MillraceError

_INF = float("inf")
# A number behind these says how many pairs count at most: bpwr-5.
_COUNTED = ("best", "bpwr")


def parse_reduction(strategy: str) -> tuple[str, int | None]:
    """(name, number or None) of a reduction such as `min` or `bpwr-5`; raises MillraceError for
    others."""
    name, dash, number = strategy.partition("-")
    if name in _REDUCTIONS and not dash:
        return name, None
    is_count = number.isdecimal() and int(number) > 0
    if name in _COUNTED and is_count:
        return name, int(number)

    problem = f"there is no track reduction {strategy!r}"
    known = [f"{each}-N" if each in _COUNTED else each for each in _REDUCTIONS]
    raise MillraceError(problem, remedy="Known are " + ", ".join(known))


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

    min, max, mean: over all pairs. meanmin: mean over S of the least over R; minmean the other way
    round. best-N: mean of the N least. bpwr-N: mean of the N best pairs without replacement, so
    that every shingle is in one pair at most. Without N: of the best, or of as many as the shorter
    track has shingles.
    """
    name, number = parse_reduction(strategy)
    reduce = _REDUCTIONS[name]
    return reduce(distances, number)


def _least(distances: Tensor, _: int | None) -> Tensor:
    pairs = distances.flatten(2)
    return pairs.min(-1).values


def _greatest(distances: Tensor, _: int | None) -> Tensor:
    pairs = distances.flatten(2)
    counted = pairs.masked_fill(pairs == _INF, -_INF)
    greatest = counted.max(-1).values
    return greatest.masked_fill(greatest == -_INF, _INF)


def _mean_of_all(distances: Tensor, _: int | None) -> Tensor:
    pairs = distances.flatten(2)
    return _mean(pairs)


def _mean_of_least(distances: Tensor, _: int | None) -> Tensor:
    least = distances.min(-1).values
    return _mean(least)


def _least_of_means(distances: Tensor, _: int | None) -> Tensor:
    means = _mean(distances)
    return means.min(-1).values


def _mean_of_best(distances: Tensor, number: int | None) -> Tensor:
    pairs = distances.flatten(2)
    count = min(number or 1, pairs.shape[-1])
    best = pairs.topk(count, largest=False).values
    return _mean(best)


def _mean_of_best_pairs(distances: Tensor, number: int | None) -> Tensor:
    best = _best_pairs(distances, number)
    return _mean(best)


_REDUCTIONS: dict[str, Callable[[Tensor, int | None], Tensor]] = {
    "min": _least,
    "max": _greatest,
    "mean": _mean_of_all,
    "minmean": _least_of_means,
    "meanmin": _mean_of_least,
    "best": _mean_of_best,
    "bpwr": _mean_of_best_pairs,
}


def _best_pairs(distances: Tensor, number: int | None) -> Tensor:
    """(Q, K, N) of (Q, K, S, R): the least distance, the least of other rows and columns, and so
    on.

    Infinite once no pair is free. The first of equal distances is taken; gradients reach the chosen
    pairs.
    """
    rows, columns = distances.shape[2:]
    count = min(rows, columns)
    if number is not None:
        count = min(count, number)

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
