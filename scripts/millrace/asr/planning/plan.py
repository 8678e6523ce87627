"""The plan of an epoch as arrays: the rows of every rank's batch at every step, and its figures,
such as padding. To resume is to index it."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from millrace.asr.planning.cut import batch_cost


@dataclass(eq=False)
class Plan:
    """Batch k = step * world_size + rank has the rows `rows[offsets[k]:offsets[k + 1]]`.

    `rows`: row numbers in the concatenation of the buckets, each exactly once. Per batch: `longest`
    (s; of split batches an upper bound), the sum `seconds` of its rows, its `bucket`. `fillers` [n,
    2]: batches without rows of their own, and the batch each repeats; they exist only where there
    are fewer rows than ranks * steps, and their loss must be weighted 0. `spans`: (world size,
    steps done) of the plans before this one in the epoch, see `planner.replan`.
    """

    world_size: int
    seed: int
    epoch: int
    rows: np.ndarray
    offsets: np.ndarray
    longest: np.ndarray
    seconds: np.ndarray
    bucket: np.ndarray
    fillers: np.ndarray
    split_batches: int = 0
    spans: tuple[tuple[int, int], ...] = ()

    def __len__(self) -> int:
        """Steps, the same on every rank."""
        return (len(self.offsets) - 1) // self.world_size

    @cached_property
    def crc32(self) -> int:
        """A checksum of which rows form which batch."""
        return zlib.crc32(self.offsets.data, zlib.crc32(self.rows.data, self.world_size))

    def batch(self, step: int, rank: int) -> np.ndarray:
        """int64 row numbers of the batch of `rank` at `step`, in O(1); of a filler, those it
        repeats."""
        start, stop = self._bounds(step, rank)
        if start == stop:
            source = self.fillers[
                np.searchsorted(self.fillers[:, 0], step * self.world_size + rank), 1
            ]
            start, stop = self.offsets[source : source + 2]
        return self.rows[start:stop].astype(np.int64)

    def is_filler(self, step: int, rank: int) -> bool:
        """Whether the batch only keeps the ranks in step: its rows are another batch's, its loss is
        0."""
        start, stop = self._bounds(step, rank)
        return bool(start == stop)

    def batches(self, rank: int, first_step: int = 0) -> Iterator[np.ndarray]:
        """The batches of a rank from `first_step` on."""
        for step in range(first_step, len(self)):
            yield self.batch(step, rank)

    def _bounds(self, step: int, rank: int) -> np.ndarray:
        if not (0 <= step < len(self) and 0 <= rank < self.world_size):
            raise IndexError(
                f"step {step}, rank {rank} of {len(self)} steps on {self.world_size} ranks"
            )
        first = step * self.world_size + rank
        return self.offsets[first : first + 2]

    def stats(self) -> dict:
        """Figures of the plan.

        `padding`: share of the padded seconds that is padding; `useful_work`: sum of cost / (ranks
        * sum over steps of the most expensive batch), cost as in `batch_cost`. Splits and fillers
        make steps equal.
        """
        counts = np.diff(self.offsets)
        padded = counts * self.longest.astype(np.float64)
        cost = batch_cost(counts, self.longest)
        # Ranks wait for the slowest of their step: never a filler, which repeats the cheapest
        # batch.
        of_steps = cost.reshape(len(self), self.world_size)
        slowest = of_steps.max(axis=1).sum() * self.world_size
        return {
            "rows": len(self.rows),
            "steps": len(self),
            "padding": 1 - float(self.seconds.sum() / padded.sum()),
            "useful_work": float(cost.sum() / slowest),
            "split_batches": self.split_batches,
            "filler_batches": len(self.fillers),
        }


@dataclass(frozen=True)
class ChosenSteps:
    """Steps of plans in an order of their own, to be read as a plan is.

    `chosen`: the plan of each step, and its number there; `first`: the number of the first row
    among those that the plans are of.
    """

    chosen: Sequence[tuple[Plan, int]]
    first: int = 0

    @property
    def epoch(self) -> int:
        return self.chosen[0][0].epoch

    def __len__(self) -> int:
        return len(self.chosen)

    def batch(self, step: int, rank: int) -> np.ndarray:
        plan, number = self.chosen[step]
        return plan.batch(number, rank) + self.first

    def is_filler(self, step: int, rank: int) -> bool:
        plan, number = self.chosen[step]
        return plan.is_filler(number, rank)
