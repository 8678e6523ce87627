"""Shared memory of batches: whose a slot is, and whether there is room for all ranks."""

from __future__ import annotations

import os
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from millrace.common.errors import MillraceError
from millrace.common.loading import slots
from millrace.common.loading.slots import BatchSlots, leased
from tests.refusals import refused


def test_a_slot_is_given_once_until_nobody_holds_its_memory():
    shared = BatchSlots(workers=2, slots=2, samples=12)
    taken = [shared.take(worker, 3, 4) for worker in (0, 0, 1)]
    assert (
        shared.take(0, 1, 1) is None
        and shared.take(1, 3, 5) is None
        and shared.take(1, 0, 4) is None
    )
    for number, (memory, _) in enumerate(taken):
        memory[:] = number
    batches = [leased(address, (3, 4)) for _, address in taken]
    assert [batch.unique().tolist() for batch in batches] == [[0.0], [1.0], [2.0]]
    child = os.fork()
    if not child:
        batches.clear()
        os._exit(0)
    os.waitpid(child, 0)
    assert shared.busy.sum() == 3  # it is in use here
    view = batches[1][0]
    del batches[1]
    assert shared.take(0, 1, 1) is None  # a part of it is still in use
    del view
    memory, address = shared.take(0, 2, 6)
    assert address == taken[1][1] and np.unique(memory).tolist() == [1.0]


# As torchrun sets them, and as Lightning does.
TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
LIGHTNING = ("NODE_RANK", "WORLD_SIZE", "LOCAL_RANK")


@pytest.mark.parametrize(
    "names, ranks, needed, problem",
    [
        (TORCHRUN, 1, 400, ""),
        (TORCHRUN, "", 400, ""),
        (TORCHRUN, 2, 200, ""),
        (TORCHRUN, 2, 201, "may take 402 MB"),
        (TORCHRUN, 1, 401, "of 1 rank may take 401 MB"),
        (LIGHTNING, 2, 400, ""),
    ],
)
def test_all_ranks_of_a_node_must_find_room(monkeypatch, names, ranks, needed, problem):
    for name, value in zip(names, (0, ranks, 0, ranks), strict=False):
        monkeypatch.setenv(name, str(value))
    free = SimpleNamespace(f_bavail=400 << 8, f_frsize=1 << 12)
    monkeypatch.setattr(os, "statvfs", lambda path: free)
    found = slots.shortage(needed << 20)
    assert problem in found and bool(found) == bool(problem)
    if problem:
        with refused(r"400 MB free.*docker --shm-size"):
            slots.require_room(needed << 20)


@pytest.mark.parametrize(
    "count, error, raised",
    [
        (1000, "", None),
        (1001, "", MillraceError),  # not tried
        (1000, "unable to allocate shared memory(shm)", MillraceError),
        (1000, "of another kind", RuntimeError),
    ],
)
def test_what_shared_memory_could_never_hold_is_not_tried(monkeypatch, count, error, raised):
    make = torch.UntypedStorage._new_shared

    def new_shared(size: int, device: str) -> torch.UntypedStorage:
        assert size <= 4000
        if error:
            raise RuntimeError(error)
        return make(size, device=device)

    monkeypatch.setattr(torch.UntypedStorage, "_new_shared", new_shared)
    whole = SimpleNamespace(f_blocks=1000, f_frsize=4)
    monkeypatch.setattr(os, "statvfs", lambda path: whole)
    if raised is None:
        assert slots.shared_floats(count).tolist() == [0.0] * count
        return
    words = "no room is left" if raised is MillraceError else error
    with pytest.raises(raised, match=words):
        slots.shared_floats(count)
