"""How the last steps of an epoch are filled, so that all ranks have a batch: the most expensive are
split, or the cheapest is repeated as a filler."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np

from millrace.asr.planning.cut import batch_cost


@dataclass
class Batches:
    """Batches of `count` rows from `rows[start]` on; those of a bucket's `group` are matched in
    cost."""

    rows: np.ndarray
    start: np.ndarray
    count: np.ndarray
    longest: np.ndarray
    seconds: np.ndarray
    bucket: np.ndarray
    group: np.ndarray


def fill_last_step(
    table: Batches, left: np.ndarray, world: int
) -> tuple[Batches, np.ndarray, dict[int, int], int]:
    """Split the most expensive of the `left` batches, else repeat the cheapest, until they fill
    whole steps.

    Returns all batches, those left, {filler: the batch it repeats}, and the number of splits.
    """
    need = -len(left) % world
    if not need:
        return table, left, {}, 0
    batches = _Growing(table)
    heap = [batches.rank(at) for at in left.tolist() if batches.count[at] > 1]
    heapq.heapify(heap)
    parts: list[int] = []
    while len(parts) < need and heap:
        _, at = heapq.heappop(heap)
        new = batches.split(at)
        parts.append(new)
        for part in (at, new):
            if batches.count[part] > 1:
                heapq.heappush(heap, batches.rank(part))

    whole = [*left.tolist(), *parts]
    cheapest = min(whole, key=lambda at: (batches.cost(at), at))
    fillers: dict[int, int] = {}
    for _ in range(need - len(parts)):
        filler = batches.repeat(cheapest)
        fillers[filler] = cheapest
    filled = np.array([*whole, *fillers])
    return batches.table(), filled, fillers, len(parts)


class _Growing:
    """The batches of a table in lists, to which further ones are added."""

    def __init__(self, table: Batches) -> None:
        self._table = table
        self.start: list[int] = table.start.tolist()
        self.count: list[int] = table.count.tolist()
        self.longest: list[float] = table.longest.tolist()
        self.seconds: list[float] = table.seconds.tolist()
        self.bucket: list[int] = table.bucket.tolist()

    def cost(self, at: int) -> float:
        return float(batch_cost(self.count[at], self.longest[at]))

    def rank(self, at: int) -> tuple[float, int]:
        """Orders by falling cost, then by number."""
        return -self.cost(at), at

    def split(self, at: int) -> int:
        """Halve a batch; returns the number of the new one, which has the longer rows."""
        half = self.count[at] // 2
        half_seconds = self.seconds[at] * half / self.count[at]
        # The longest of the shorter rows is unknown: that of the old batch bounds it.
        start = self.start[at] + half
        count = self.count[at] - half
        new = self._add(at, start, count, self.seconds[at] - half_seconds)
        self.longest[new] = self.longest[at]
        self.count[at] = half
        self.seconds[at] = half_seconds
        return new

    def repeat(self, at: int) -> int:
        """Add a filler: a batch that repeats another, and whose rows count nothing."""
        return self._add(at, self.start[at], 0, 0.0)

    def _add(self, like: int, start: int, count: int, seconds: float) -> int:
        self.start.append(start)
        self.count.append(count)
        self.longest.append(0.0)
        self.seconds.append(seconds)
        self.bucket.append(self.bucket[like])
        return len(self.start) - 1

    def table(self) -> Batches:
        return Batches(
            self._table.rows,
            np.array(self.start),
            np.array(self.count),
            np.array(self.longest, np.float32),
            np.array(self.seconds),
            np.array(self.bucket, np.int16),
            self._table.group,
        )
