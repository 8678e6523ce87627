"""Distances between tracks: of every pair of their shingles, reduced to one number."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from millrace.common.errors import MillraceError

_INF = float("inf")
# A number behind best and bpwr says how many pairs count at most: bpwr-5.
REDUCTIONS = ("min", "max", "mean", "minmean", "meanmin", "best", "bpwr")
_COUNTED = ("best", "bpwr")


def parse_reduction(strategy: str) -> tuple[str, int | None]:
    """(name, number or None) of a reduction such as `min` or `bpwr-5`; raises MillraceError for
    others."""
    name, dash, number = strategy.partition("-")
    if name in REDUCTIONS and not dash:
        return name, None
    if name in _COUNTED and number.isdecimal() and int(number):
        return name, int(number)
    known = ", ".join(f"{each}-N" if each in _COUNTED else each for each in REDUCTIONS)
    raise MillraceError(f"there is no track reduction {strategy!r}", remedy=f"Known are {known}")


def shingle_distances(queries: Tensor, candidates: Tensor) -> Tensor:
    """Squared Euclidean distances (Q, K, S, R), divided by the dimension; in float32 also under
    autocast."""
    with torch.autocast(queries.device.type, enabled=False):
        left = queries.float().flatten(0, 1)
        right = candidates.float().flatten(0, 1)
        products = left @ right.T
        squares = left.square().sum(1, keepdim=True) - 2 * products + right.square().sum(1)
        # Rounding can make the distance of equal embeddings negative.
        distances = squares.relu() / left.shape[1]
    by_track = distances.reshape(*queries.shape[:2], *candidates.shape[:2])
    return by_track.transpose(1, 2)


def reduced(distances: Tensor, strategy: str) -> Tensor:
    """(Q, K) of the distances (Q, K, S, R) of shingles; infinite ones take no part.

    min, max, mean: over all pairs. meanmin: mean over S of the least over R; minmean the other way
    round. best-N: mean of the N least. bpwr-N: mean of the N best pairs without replacement, so
    that every shingle is in one pair at most. Without N: of the best, or of as many as the shorter
    track has shingles.
    """
    name, number = parse_reduction(strategy)
    return _REDUCTIONS[name](distances, number)


def _least(distances: Tensor, _: int | None) -> Tensor:
    return distances.flatten(2).min(-1).values


def _greatest(distances: Tensor, _: int | None) -> Tensor:
    pairs = distances.flatten(2)
    greatest = pairs.masked_fill(pairs == _INF, -_INF).max(-1).values
    return greatest.masked_fill(greatest == -_INF, _INF)


def _mean_of_all(distances: Tensor, _: int | None) -> Tensor:
    return _mean(distances.flatten(2))


def _mean_of_least(distances: Tensor, _: int | None) -> Tensor:
    return _mean(distances.min(-1).values)


def _least_of_means(distances: Tensor, _: int | None) -> Tensor:
    return _mean(distances).min(-1).values


def _mean_of_best(distances: Tensor, number: int | None) -> Tensor:
    pairs = distances.flatten(2)
    count = min(number or 1, pairs.shape[-1])
    return _mean(pairs.topk(count, largest=False).values)


def _mean_of_best_pairs(distances: Tensor, number: int | None) -> Tensor:
    return _mean(_best_pairs(distances, number))


_REDUCTIONS: dict[str, Callable[[Tensor, int | None], Tensor]] = {
    "min": _least,
    "max": _greatest,
    "mean": _mean_of_all,
    "meanmin": _mean_of_least,
    "minmean": _least_of_means,
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
    count = min(rows, columns, number or rows)
    values = distances.flatten(2)
    free = distances.detach().clone(memory_format=torch.contiguous_format)
    chosen = []
    for _ in range(count):
        least, pair = free.flatten(2).min(-1, keepdim=True)
        distance = values.gather(-1, pair)
        chosen.append(distance.masked_fill(least == _INF, _INF))

        # Its shingles are in no other pair.
        row = (pair // columns).unsqueeze(-1)
        column = (pair % columns).unsqueeze(-1)
        free.scatter_(2, row.expand(-1, -1, 1, columns), _INF)
        free.scatter_(3, column.expand(-1, -1, rows, 1), _INF)
    return torch.cat(chosen, -1)


def _mean(values: Tensor) -> Tensor:
    """Mean over the last dimension of what is not infinite; infinite if nothing is."""
    counted = values != _INF  # NaN counts, and shows
    number = counted.sum(-1)
    mean = values.masked_fill(~counted, 0).sum(-1) / number.clamp(min=1)
    return mean.masked_fill(number == 0, _INF)
