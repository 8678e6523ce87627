"""Durations by bucket: counts in small steps, the edges that pad least, and the bucket of every
duration."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from millrace.common.errors import MillraceError

STEP_SECONDS = 0.01
MAX_STEPS = 6000  # the search for edges costs their number squared


def bucket_of(durations: np.ndarray, edges: Sequence[float]) -> np.ndarray:
    """int16 number of the bucket [low, high) of every duration (seconds).

    What is below the first edge joins the first bucket; the last edge itself, and what lies beyond,
    the last.
    """
    inner = np.asarray(edges[1:-1], dtype=np.float64)
    return np.searchsorted(inner, durations, side="right").astype(np.int16)


class DurationHistogram:
    """Counts of durations in steps of `step` seconds up to `last`; what is longer is in the last
    step.

    Without `step`: STEP_SECONDS, or more if `last` is above a minute.
    """

    def __init__(self, last: float, step: float | None = None) -> None:
        self.step = step or max(STEP_SECONDS, last / MAX_STEPS)
        steps = np.ceil(round(last / self.step, 6))
        self.counts = np.zeros(max(1, int(steps)), dtype=np.int64)

    def add(self, durations: np.ndarray) -> None:
        finite = np.minimum(durations, 1e9)
        steps = (finite / self.step + 1e-6).astype(np.int64)
        known = np.minimum(steps, len(self.counts) - 1)
        self.counts += np.bincount(known, minlength=len(self.counts))

    def least_padding(self, buckets: int) -> tuple[float, ...]:
        """The edges that pad least when every row is padded to the upper edge of its bucket.

        Exact, by dynamic programming: minimises the sum over buckets of rows * upper edge (the real
        seconds are constant), in O(buckets * n^2), vectorised over one n. The first edge is 0, the
        last the histogram's. Fewer buckets come back if there are fewer different durations.
        """
        if buckets < 1:
            problem = f"the number of buckets must be at least 1, not {buckets}"
            raise MillraceError(problem, "edges: auto")
        last = len(self.counts)
        # An edge just above an empty step is never better than the one above the last used step
        # below it; and padding goes to the longest row, so the last edge counts as if it lay right
        # above that.
        ends = np.flatnonzero(self.counts) + 1
        if not len(ends):
            ends = np.array([last])
        rows = np.cumsum(self.counts.astype(np.float64))
        below = rows[ends - 1]  # rows below each candidate edge
        chosen = _best_begins(below, ends, min(buckets, len(ends)))

        # Walk back from the last candidate, which stands for the histogram's end.
        edges = [last]
        end = chosen[-1, -1]
        for begins in chosen[-2::-1]:
            edges.append(ends[end])
            end = begins[end]
        seconds = [round(float(edge * self.step), 6) for edge in reversed(edges)]
        return (0.0, *seconds)


def _best_begins(below: np.ndarray, ends: np.ndarray, buckets: int) -> np.ndarray:
    """Where the last bucket begins if the rows below a candidate edge lie in the best 1, 2, ...
    buckets: number of a candidate, (buckets, candidates).

    `ends`: steps of the candidate edges; `below`: rows below each.
    """
    # Padded steps of the rows below each candidate in the best buckets so far.
    cost = below * ends
    chosen = np.zeros((buckets, len(ends)), dtype=np.int64)
    for bucket in range(1, buckets):
        first = bucket - 1
        previous = cost
        cost = np.full(len(ends), np.inf)
        for end in range(bucket, len(ends)):
            own_rows = below[end] - below[first:end]
            totals = previous[first:end] + own_rows * ends[end]
            best = int(np.argmin(totals))
            cost[end] = totals[best]
            chosen[bucket, end] = first + best
    return chosen
