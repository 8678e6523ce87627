"""Who reads which records of an epoch: contiguous blocks for each rank and each of its workers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from millrace.common import hashing
from millrace.common.training.task import Spans


class Shape(NamedTuple):
    """How a rank's block is cut: records of a batch at most; streams, one for each worker, to which
    a loader deals steps in turn; neighbouring batches of a stream whose records are shuffled."""

    batch_size: int
    streams: int = 1
    mixed_batches: int = 1


Shapes = Mapping[int, Shape]


class BlockPlan:
    """Batches over the positions 0 to `records` - 1 of an epoch's record files.

    Each rank has a contiguous block, cut into batches whose sizes differ by one at most; each
    stream has contiguous batches of it. Nothing is dropped; with fewer records than ranks the ranks
    without one repeat a record, with weight 0. `spans`: (world size, steps done) of
    the plans before this one in the epoch, which had `shapes` by world size: what they have read is
    left out.
    """

    def __init__(
        self,
        records: int,
        world_size: int,
        shapes: Shapes,
        epoch: int = 0,
        seed: int = 0,
        spans: Spans = (),
    ) -> None:
        self.world_size = world_size
        self.epoch = epoch
        self._seed = seed
        positions = np.arange(records)
        for world, steps in spans:
            batches = self._deal(positions, world, shapes[world])
            left = batches[steps * world :]
            joined = np.concatenate([positions[:0], *left])
            positions = np.sort(joined)
        self._batches = self._deal(positions, world_size, shapes[world_size])

    def _deal(self, positions: np.ndarray, world_size: int, shape: Shape) -> list[np.ndarray]:
        """The batches of all ranks, step after step."""
        streams = shape.streams
        blocks = np.array_split(positions, world_size)
        longest = len(blocks[0])
        steps = math.ceil(longest / shape.batch_size)
        # Step s is given to worker s mod streams: the k-th batch of each stream in turn.
        of_streams = np.array_split(np.arange(steps), streams)
        edges = np.cumsum([0, *map(len, of_streams)])
        turns = [edges[step % streams] + step // streams for step in range(steps)]
        ranks = []
        for rank, block in enumerate(blocks):
            parts = np.array_split(block, max(steps, 1))
            if shape.mixed_batches > 1:
                self._mix(parts, edges.tolist(), shape.mixed_batches, rank, len(block))
            ranks.append(parts)
        return [parts[turn] for turn in turns for parts in ranks]

    def _mix(
        self, parts: list[np.ndarray], edges: list[int], batches: int, rank: int, records: int
    ) -> None:
        """Shuffle, in place, the records of so many neighbouring batches of each stream."""
        for first, last in itertools.pairwise(edges):
            for start in range(first, last, batches):
                stop = min(start + batches, last)
                window = parts[start:stop]
                joined = np.concatenate(window)
                key = hashing.key(self._seed, self.epoch, rank, records, start)
                mixed = hashing.mix(joined.astype(np.uint64) ^ key)
                order = np.argsort(mixed, kind="stable")
                ends = np.cumsum([len(part) for part in window])
                shuffled = np.split(joined[order], ends[:-1])
                parts[start:stop] = map(np.sort, shuffled)

    def __len__(self) -> int:
        return len(self._batches) // self.world_size

    def batch(self, step: int, rank: int) -> np.ndarray:
        """int64 positions of the batch of `rank` at `step`, ascending; of a filler, one that is
        repeated."""
        if self.is_filler(step, rank):
            return self._batches[0][:1]
        return self._batches[step * self.world_size + rank]

    def is_filler(self, step: int, rank: int) -> bool:
        batch = self._batches[step * self.world_size + rank]
        return not len(batch)
