"""Edges of duration buckets: the seed's seven, or the exact optimum for a chosen number; and the ids of
buckets."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from millrace.common.errors import MillraceError

SEED_EDGES = (0.0, 3.0, 5.0, 7.0, 10.0, 15.0, 20.0, 30.0)
STEP_SECONDS = 0.01
MOST_STEPS = 6000  # the search for edges costs their number squared


def checked_edges(edges: Sequence[float]) -> tuple[float, ...]:
    """`edges` in seconds, rising, from 0 or more; n buckets have n + 1 edges. Raises MillraceError
    otherwise."""
    try:
        values = tuple(float(edge) for edge in edges)
    except (TypeError, ValueError):
        values = ()
    rising = all(low < high for low, high in pairwise(values))
    if len(values) < 2 or not rising or values[0] < 0 or not np.isfinite(values).all():
        raise MillraceError(
            f"bucket edges must be at least two rising numbers of seconds from 0, not {list(edges)}",
            where="edges",
            remedy="For example 0 3 5 7 10 15 20 30",
        )
    return values


def bucket_ids(edges: Sequence[float]) -> list[str]:
    """`b_<low>_<high>` of every bucket, as in b_0_3 or b_2.5_4."""
    text = [format(edge, ".10g") for edge in edges]
    return [f"b_{low}_{high}" for low, high in pairwise(text)]


def bucket_of(durations: np.ndarray, edges: Sequence[float]) -> np.ndarray:
    """int16 number of the bucket [low, high) of every duration (seconds).

    What is below the first edge joins the first bucket; the last edge itself, and what lies beyond, the last.
    """
    return np.searchsorted(np.asarray(edges[1:-1], dtype=np.float64), durations, side="right").astype(
        np.int16
    )


class DurationHistogram:
    """Counts of durations in steps of `step` seconds up to `last`; what is longer is in the last step.

    Without `step`: STEP_SECONDS, or more where `last` is above a minute.
    """

    def __init__(self, last: float, step: float | None = None) -> None:
        self.step = step = step or max(STEP_SECONDS, last / MOST_STEPS)
        self.counts = np.zeros(max(1, int(np.ceil(round(last / step, 6)))), dtype=np.int64)

    def add(self, durations: np.ndarray) -> None:
        at = np.minimum(
            (np.minimum(durations, 1e9) / self.step + 1e-6).astype(np.int64), len(self.counts) - 1
        )
        self.counts += np.bincount(at, minlength=len(self.counts))


def auto_edges(counts: np.ndarray, buckets: int, step: float = STEP_SECONDS) -> tuple[float, ...]:
    """The edges that pad least when every row is padded to the upper edge of its bucket; exact, by dynamic
    programming.

    `counts[i]` rows last [i, i + 1) * step seconds. Minimises the sum over buckets of rows * upper edge (the
    real seconds are constant), in O(buckets * n^2), vectorised over one n. The first edge is 0, the last
    len(counts) * step. Fewer buckets come back where fewer different durations exist.
    """
    counts = np.asarray(counts, dtype=np.float64)
    used = np.flatnonzero(counts)
    last = len(counts)
    # An edge just above an empty step is never better than the one above the last used step below it; and
    # padding goes to the longest row, so the last edge counts as if it lay right above that.
    ends = used + 1 if len(used) else np.array([last])
    if buckets < 1:
        raise MillraceError(f"the number of buckets must be at least 1, not {buckets}", where="edges: auto")
    buckets = min(buckets, len(ends))
    below = np.concatenate([[0.0], np.cumsum(counts)])[ends]  # rows below each candidate edge
    cost = below * ends  # one bucket up to the candidate
    chosen = np.zeros((buckets, len(ends)), dtype=np.int64)
    for bucket in range(1, buckets):
        previous, cost = cost, np.full(len(ends), np.inf)
        for end in range(bucket, len(ends)):
            totals = previous[bucket - 1 : end] + (below[end] - below[bucket - 1 : end]) * ends[end]
            best = int(np.argmin(totals))
            cost[end], chosen[bucket, end] = totals[best], best + bucket - 1
    edges, end = [], len(ends) - 1
    for bucket in range(buckets - 1, -1, -1):
        edges.append(round(float(ends[end] * step), 6))
        end = chosen[bucket, end]
    edges[0] = round(float(last * step), 6)
    return (0.0, *reversed(edges))
