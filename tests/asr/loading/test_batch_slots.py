"""Shared memory for batches: where there is none, one line says so."""

from __future__ import annotations

import pytest

from millrace.asr.loading import batch_slots
from millrace.common.errors import MillraceError


def test_a_batch_that_shared_memory_has_no_room_for_is_said_so():
    with pytest.raises(MillraceError, match=r"no room is left for a batch of .*docker --shm-size") as caught:
        batch_slots.shared_floats(1 << 42)
    assert caught.value.where == "/dev/shm"


def test_shared_floats_are_zeros():
    floats = batch_slots.shared_floats(1000)
    assert floats.is_shared() and floats.shape == (1000,) and not floats.any()
