"""What batches under way take: in /dev/shm, and page-locked."""

from __future__ import annotations

import json

import pytest

from millrace.asr.training import memory
from millrace.common.loading.slots import BatchSlots


def test_the_slots_of_the_loader_are_counted():
    """As BatchLoader makes them: of each worker two more than it has batches ahead."""
    workers, prefetch, seconds = 3, 4, 10.0
    slots = BatchSlots(workers, prefetch + 2, round(seconds * 16_000))
    size = sum(buffer.numel() * buffer.element_size() for buffer in slots.buffers)
    assert memory.batches_mb(workers, prefetch, seconds, pinned=False) * 1e6 == size


@pytest.mark.parametrize(
    "workers, prefetch, seconds, pinned_mb",
    [
        # 1,400 s are 89.6 MB, in a block of 134.2 MB.
        (16, 4, 1400.0, 65 * 134.217728),
        (16, 1, 1400.0, 17 * 134.217728),
        # A power of two is not rounded up.
        (1, 1, 2**26 / 64_000, 2 * 67.108864),
        (0, 4, 1400.0, 134.217728),
    ],
)
def test_page_locked_blocks_are_powers_of_two(workers, prefetch, seconds, pinned_mb):
    with_pinned, without = (
        memory.batches_mb(workers, prefetch, seconds, pinned) for pinned in (True, False)
    )
    assert with_pinned - without == pytest.approx(pinned_mb)


@pytest.mark.parametrize(
    "buckets, seconds",
    [
        ({"a": {"batch_size": 8, "longest_seconds": 3.0}}, 24.0),
        (
            {
                "a": {"batch_size": 8, "longest_seconds": 3.0, "budget": {"seconds": 40.0}},
                "b": {"batch_size": 2, "longest_seconds": 10.0, "budget": {"cost": 90.5}},
                "c": {"batch_size": 2, "longest_seconds": 10.0, "budget": {"rows": 2}},
            },
            90.5,
        ),
        ({}, 2_000.0),
        ({"a": {}}, 2_000.0),
        ({"a": None}, 2_000.0),
    ],
)
def test_the_largest_batch_is_that_of_the_calibration(tmp_path, buckets, seconds):
    path = tmp_path / "calibrated_bs.json"
    assert memory.largest_batch_seconds(path) == 2_000.0
    path.write_text(json.dumps({"buckets": buckets}))
    assert memory.largest_batch_seconds(path) == seconds
