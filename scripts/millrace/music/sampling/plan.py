"""The plan of an epoch: every recording is an anchor once, in blocks that are the same for all
ranks."""

from __future__ import annotations

from dataclasses import dataclass

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
            raise IndexError(
                f"step {step}, rank {rank} of {len(self)} steps on {self.world_size} ranks"
            )
        return self.rows[slice(*self.offsets[step * self.world_size + rank :][:2])]

    def is_filler(self, step: int, rank: int) -> bool:
        return False


def plan_anchors(
    cliques: Cliques,
    size: int,
    seed: int,
    epoch: int,
    world_size: int,
    spans: Spans = (),
    limit: int = 0,
) -> AnchorPlan:
    """The batches of `size` anchors of an epoch, or of its rest after `spans`; `limit` steps at
    most.

    The seed and the epoch alone make blocks of anchors, each of two cliques at least; ranks take
    them in turn. So after `spans` (world size, steps done) other ranks go on with the next block,
    and see none twice.
    """
    order = seeding.generator(seed, "anchors", epoch).permutation(len(cliques)).astype(np.int64)
    blocks = order[: len(order) // size * size].reshape(-1, size)
    blocks = blocks[_mix(blocks, cliques.cliques)]
    done = sum(world * steps for world, steps in spans)
    if limit:
        blocks = blocks[: limit * (spans[0][0] if spans else world_size)]
    steps = (len(blocks) - done) // world_size
    if steps < 1 and not done:
        sizes = (
            f"{counted(len(cliques), 'recording')} make no batch of {size} anchors of two cliques"
        )
        remedy = "Set it lower, take fewer ranks, or look at what was left out of the cliques"
        raise MillraceError(
            f"{sizes} for {counted(world_size, 'rank')}", "training.batchsize", remedy
        )
    blocks = blocks[done : done + max(steps, 0) * world_size]
    offsets = np.arange(len(blocks) + 1, dtype=np.int64) * size
    left_out = len(order) - (done + len(blocks)) * size
    return AnchorPlan(epoch, world_size, blocks.ravel(), offsets, left_out)


def _mix(blocks: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Exchange anchors in place until each block has two cliques; bool, False for blocks that
    cannot."""
    size, flat = blocks.shape[1], blocks.reshape(-1)
    mixed = (labels[blocks] != labels[blocks[:, :1]]).any(1)
    for block in np.flatnonzero(~mixed):
        own = labels[blocks[block, 0]]
        mixed[block] = (labels[blocks[block]] != own).any()
        # An anchor of another clique, from the next block that has a second one to spare.
        spare = (labels[blocks] != own).sum(1) > 1
        places = np.roll(np.arange(len(flat)), -block * size)
        fitting = places[(labels[flat[places]] != own) & spare[places // size]]
        if len(fitting) and not mixed[block]:
            flat[[block * size, fitting[0]]] = flat[[fitting[0], block * size]]
            mixed[block] = True
    return mixed
