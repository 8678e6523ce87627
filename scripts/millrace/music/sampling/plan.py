"""The plan of an epoch: a recording is an anchor once, in blocks of two cliques at least that are
the same for all ranks; which anchors are left out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from millrace.common.errors import MillraceError, counted
from millrace.common.training import seeding
from millrace.common.training.task import Spans
from millrace.music.sampling.cliques import Cliques


@dataclass(eq=False)
class AnchorPlan:
    """Batch k = step * world_size + rank has the anchors `rows[offsets[k]:offsets[k + 1]]`: rows of
    Cliques.

    `left_out` anchors are no whole batch of every rank, or one of a single clique.
    """

    epoch: int
    world_size: int
    rows: np.ndarray
    offsets: np.ndarray
    left_out: int = 0

    def __len__(self) -> int:
        return (len(self.offsets) - 1) // self.world_size

    def batch(self, step: int, rank: int) -> np.ndarray:
        """int64 anchors of the batch of `rank` at `step`."""
        if not (0 <= step < len(self) and 0 <= rank < self.world_size):
            problem = f"step {step}, rank {rank} of {len(self)} steps on {self.world_size} ranks"
            raise IndexError(problem)
        batch = step * self.world_size + rank
        start, stop = self.offsets[batch : batch + 2]
        return self.rows[start:stop]

    def is_filler(self, step: int, rank: int) -> bool:
        return False


class Blocks(NamedTuple):
    """How anchors become batches: `size` in each, drawn by `seed`; `limit` steps at most, 0 for
    all."""

    size: int
    seed: int
    limit: int = 0


def plan_anchors(
    cliques: Cliques, chosen: Blocks, epoch: int, world_size: int, spans: Spans = ()
) -> AnchorPlan:
    """The batches of an epoch, or of its rest after `spans`.

    The seed and the epoch alone make blocks of anchors, each of two cliques at least; ranks take
    them in turn. So after `spans` (world size, steps done) other ranks go on with the next block,
    and see none twice.
    """
    size = chosen.size
    draws = seeding.generator(chosen.seed, "anchors", epoch)
    order = draws.permutation(len(cliques)).astype(np.int64)
    whole = len(order) // size
    blocks = order[: whole * size].reshape(whole, size)
    labels = cliques.cliques[blocks]
    is_mixed = (labels != labels[:, :1]).any(1)
    blocks = blocks[is_mixed]

    if chosen.limit:
        first_world = spans[0][0] if spans else world_size
        blocks = blocks[: chosen.limit * first_world]
    done = sum(world * steps for world, steps in spans)
    steps = (len(blocks) - done) // world_size
    if steps < 1 and not done:
        raise _no_batch(len(cliques), size, world_size)

    planned = max(steps, 0) * world_size
    blocks = blocks[done : done + planned]
    offsets = np.arange(len(blocks) + 1, dtype=np.int64) * size
    left_out = len(order) - (done + len(blocks)) * size
    return AnchorPlan(epoch, world_size, blocks.ravel(), offsets, left_out)


def _no_batch(recordings: int, size: int, world_size: int) -> MillraceError:
    problem = f"{counted(recordings, 'recording')} make no batch of {size} anchors of two cliques"
    problem += f" for {counted(world_size, 'rank')}"
    remedy = "Set it lower, take fewer ranks, or look at what was left out of the cliques"
    return MillraceError(problem, "training.batchsize", remedy)
