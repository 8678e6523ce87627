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
        self.counts = np.zeros(max(1, int(np.ceil(round(last / self.step, 6)))), dtype=np.int64)

    def add(self, durations: np.ndarray) -> None:
        steps = (np.minimum(durations, 1e9) / self.step + 1e-6).astype(np.int64)
        last = len(self.counts) - 1
        self.counts += np.bincount(np.minimum(steps, last), minlength=len(self.counts))

    def least_padding(self, buckets: int) -> tuple[float, ...]:
        """The edges that pad least when every row is padded to the upper edge of its bucket.

        Exact, by dynamic programming: minimises the sum over buckets of rows * upper edge (the real
        seconds are constant), in O(buckets * n^2), vectorised over one n. The first edge is 0, the
        last the histogram's. Fewer buckets come back if there are fewer different durations.
        """
        if buckets < 1:
            raise MillraceError(
                f"the number of buckets must be at least 1, not {buckets}", "edges: auto"
            )
        last = len(self.counts)
        # An edge just above an empty step is never better than the one above the last used step
        # below it; and padding goes to the longest row, so the last edge counts as if it lay right
        # above that.
        ends = np.flatnonzero(self.counts) + 1
        ends = ends if len(ends) else np.array([last])
        buckets = min(buckets, len(ends))
        below = np.cumsum(self.counts.astype(np.float64))[
            ends - 1
        ]  # rows below each candidate edge

        # cost[end]: padded steps of the rows below candidate `end` in the best buckets so far;
        # chosen[bucket, end]: the candidate where the last of these buckets begins.
        cost = below * ends
        chosen = np.zeros((buckets, len(ends)), dtype=np.int64)
        for bucket in range(1, buckets):
            previous, cost = cost, np.full(len(ends), np.inf)
            for end in range(bucket, len(ends)):
                totals = (
                    previous[bucket - 1 : end] + (below[end] - below[bucket - 1 : end]) * ends[end]
                )
                best = int(np.argmin(totals))
                cost[end], chosen[bucket, end] = totals[best], best + bucket - 1

        # Walk back from the last candidate, which stands for the histogram's end.
        edges, end = [last], chosen[-1, -1]
        for bucket in range(buckets - 2, -1, -1):
            edges.append(ends[end])
            end = chosen[bucket, end]
        return (0.0, *(round(float(edge * self.step), 6) for edge in reversed(edges)))
