"""Who reads what: every position once, contiguous blocks, the same number of steps on all ranks."""

from __future__ import annotations

import numpy as np
import pytest

from millrace.image.training.plan import BlockPlan, Shape


def read_by(plan: BlockPlan, records: int, steps: int | None = None) -> np.ndarray:
    """How often each position is read and counts, in the first `steps`."""
    counts = np.zeros(records, np.int64)
    for step in range(len(plan) if steps is None else steps):
        for rank in range(plan.world_size):
            if not plan.is_filler(step, rank):
                np.add.at(counts, plan.batch(step, rank), 1)
    return counts


@pytest.mark.parametrize("records", [1, 2, 5, 1000, 1003])
@pytest.mark.parametrize(
    "ranks, shape", [(1, Shape(7)), (2, Shape(64, 3, 4)), (3, Shape(1000, 4, 2))]
)
def test_every_record_is_read_once_an_epoch(records, ranks, shape):
    plan = BlockPlan(records, ranks, {ranks: shape}, epoch=1, seed=3)
    assert read_by(plan, records).tolist() == [1] * records
    sizes = {len(plan.batch(step, rank)) for step in range(len(plan)) for rank in range(ranks)}
    assert max(sizes) <= shape.batch_size and max(sizes) - min(sizes) <= 1 + (ranks > 1)


def test_ranks_and_workers_read_contiguous_blocks():
    plan = BlockPlan(960, 2, {2: Shape(16, streams=3, mixed_batches=4)})
    blocks = [
        np.sort(np.concatenate([plan.batch(step, rank) for step in range(stream, len(plan), 3)]))
        for rank in range(2)
        for stream in range(3)
    ]
    assert np.array_equal(np.concatenate(blocks), np.arange(960))


def test_neighbouring_batches_are_mixed_in_another_way_each_epoch():
    plans = [BlockPlan(640, 1, {1: Shape(64, 1, 5)}, epoch, seed=1) for epoch in (1, 1, 2)]
    first = [plan.batch(0, 0) for plan in plans]
    assert np.array_equal(first[0], first[1]) and not np.array_equal(first[0], first[2])
    assert first[0].max() < 5 * 64 and np.ptp(first[0]) > 250
    other = BlockPlan(640, 1, {1: Shape(64, 1, 5)}, 1, seed=2)
    assert not np.array_equal(first[0], other.batch(0, 0))


def test_other_ranks_and_workers_go_on_where_an_epoch_was_left():
    shapes = {2: Shape(10, 2, 3), 3: Shape(8, 1, 2), 1: Shape(31)}
    first, second = BlockPlan(500, 2, shapes, 1, 5), BlockPlan(500, 3, shapes, 1, 5, [(2, 7)])
    last = BlockPlan(500, 1, shapes, 1, 5, [(2, 7), (3, 4)])
    assert (read_by(first, 500, 7) + read_by(second, 500, 4) + read_by(last, 500)).tolist() == [
        1
    ] * 500
    assert len(BlockPlan(500, 3, shapes, 1, 5, [(2, len(first))])) == 0
