"""Shared memory that is used again for every batch: how a worker gets a free slot, the trainer
reads it in place, and what is said if /dev/shm has no room.

A fresh shared-memory segment per batch costs a page fault per 4 KiB on both sides, half as much as
decoding. Slots are mapped once. The trainer's tensor holds a lease; a slot whose memory nobody
references is free.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import torch

from millrace.common.errors import MillraceError, counted

REMEDY = "Give it more (docker --shm-size, --ipc=host), or take a smaller prefetch or fewer workers"
_OPEN: weakref.WeakValueDictionary[int, BatchSlots] = weakref.WeakValueDictionary()


class BatchSlots:
    """`slots` shared buffers of `samples` float32 for each of `workers` workers, made before these
    start."""

    _made = 0

    def __init__(self, workers: int, slots: int, samples: int) -> None:
        BatchSlots._made += 1
        self.number = BatchSlots._made
        self.samples = samples
        self.buffers = [shared_floats(slots * samples) for _ in range(workers)]
        self.busy = torch.zeros((workers, slots), dtype=torch.uint8).share_memory_()
        _OPEN[self.number] = self

    def take(
        self, worker: int, count: int, samples: int
    ) -> tuple[np.ndarray, tuple[int, int, int]] | None:
        """In a worker: a free slot as float32 (count, samples), not zeroed, and its address; None
        if full."""
        busy = self.busy.numpy()[worker]
        free = np.flatnonzero(busy == 0)
        if not len(free) or not 0 < count * samples <= self.samples:
            return None
        slot = int(free[0])
        busy[slot] = 1
        flat = self.buffers[worker].numpy()[slot * self.samples :][: count * samples]
        return flat.reshape(count, samples), (self.number, worker, slot)

    def release(self, worker: int, slot: int) -> None:
        self.busy.numpy()[worker, slot] = 0


class _Lease:
    """What the trainer's array stands on: it goes when the last tensor that shares the memory
    goes."""

    def __init__(self, slots: BatchSlots, worker: int, slot: int, shape: tuple[int, int]) -> None:
        self._slots = slots
        self._place = (worker, slot)
        self._process = os.getpid()
        address = slots.buffers[worker].data_ptr() + slot * slots.samples * 4
        self.__array_interface__ = {
            "data": (address, False),
            "shape": shape,
            "typestr": "<f4",
            "version": 3,
        }

    def __del__(self) -> None:
        # A process that was forked meanwhile has a copy of this, and the memory is not its own.
        if os.getpid() == self._process:
            self._slots.release(*self._place)


def leased(address: tuple[int, int, int], shape: tuple[int, int]) -> torch.Tensor:
    """In the trainer: the batch in a slot as a tensor, without a copy."""
    number, worker, slot = address
    return torch.from_numpy(np.asarray(_Lease(_OPEN[number], worker, slot, shape)))


class InSlot:
    """A tensor that a worker has put into a slot.

    It goes to the trainer as its address, once, also if several batches hold it.
    """

    def __init__(self, tensor: torch.Tensor, address: tuple[int, int, int]) -> None:
        self.tensor = tensor
        self.address = address
        self._begin = tensor.data_ptr()

    @property
    def is_there(self) -> bool:
        """Whether the tensor lies in the slot still: `tensor.data` may have been set."""
        return self.tensor.data_ptr() == self._begin and self.tensor.is_contiguous()


def _sent(held: InSlot) -> tuple[Any, ...]:
    if held.is_there:
        return _received, (held.address, tuple(held.tensor.shape))
    return InSlot, (held.tensor, held.address)


def _received(address: tuple[int, int, int], shape: tuple[int, int]) -> InSlot:
    return InSlot(leased(address, shape), address)


# What the queues between processes pickle with.
ForkingPickler.register(InSlot, _sent)


def shortage(needed: int) -> str:
    """What /dev/shm lacks if each rank of this node has so many bytes under way; "" if nothing."""
    # Ranks of another launcher (Lightning's own) may be numbered in other variables.
    ranks = max(1, int(os.environ.get("LOCAL_WORLD_SIZE", "") or 1))
    with contextlib.suppress(OSError):
        memory = os.statvfs("/dev/shm")
        if (free := memory.f_bavail * memory.f_frsize) < ranks * needed:
            place = f"/dev/shm has {free >> 20} MB free"
            takers = counted(ranks, "rank")
            return f"{place}, and batches under way of {takers} may take {ranks * needed >> 20} MB"
    return ""


def require_room(needed: int) -> None:
    """Raise MillraceError if /dev/shm has no room for these bytes of each rank: a worker would die
    of it."""
    if problem := shortage(needed):
        raise MillraceError(problem, remedy=REMEDY)


def shared_floats(count: int) -> torch.Tensor:
    """float32 zeros in new shared memory, which takes room once written; MillraceError if none is
    left."""
    lacking = MillraceError(
        f"no room is left for a batch of {count * 4 / 1e6:.1f} MB", "/dev/shm", f"{REMEDY}, or none"
    )
    # Where torch fails it leaves a file of that size behind, so what can never fit is not tried.
    with contextlib.suppress(OSError):
        memory = os.statvfs("/dev/shm")
        if count * 4 > memory.f_blocks * memory.f_frsize:
            raise lacking
    try:
        storage = torch.UntypedStorage._new_shared(count * 4, device="cpu")
    except RuntimeError as error:
        if "shared memory" not in str(error):
            raise
        raise lacking from None
    return torch.empty(0, dtype=torch.float32).set_(storage)
