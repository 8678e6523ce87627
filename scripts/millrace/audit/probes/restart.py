"""A loader restored in the middle of an epoch, and from the state of one that has ended."""

from __future__ import annotations

import copy
import inspect
import sys
import time
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch.utils.data import IterableDataset

from millrace.audit.probes.epochs import MOST_BATCHES, PLACES, parts, tell_epoch
from millrace.audit.runner import trace
from millrace.audit.runner.listener import SEED, Listener, reseed
from millrace.audit.runner.probes import Seen
from millrace.audit.runner.target import Rank, Target


class Way(NamedTuple):
    """A way in which a library saves and restores the position of a loader: what has the methods
    `save` and `restore`."""

    how: str
    save: str = "state_dict"
    restore: str = "load_state_dict"


# accelerate's function for loaders without a state, which transformers' Trainer calls too:
# batches are counted, and nothing is saved.
SKIP = Way("skip_first_batches")
# Grain's iterators.
ITERATOR = Way("iterator", "get_state", "set_state")
# torch's protocol: torchdata, lhotse, litdata, Lightning's checkpoint of a loader.
PROTOCOL = [Way(place) for place in ("loader", *PLACES)]
# The first that a loader has is taken.
WAYS = (SKIP, *PROTOCOL, ITERATOR)


def resume(target: Target, rank: Rank) -> Seen:
    """`run`: epochs 0 and 1 undisturbed. `ways`: epoch 1 after a restart and `at` batches, with
    equal seeds; none if epoch 1 had fewer. `next`: what comes after a restart from the state of
    when epoch 0 had ended; None if there was no time.

    `how`: the way of keeping a state, or "" if there is none.
    """
    began = time.monotonic()
    tap = _started(target, rank)
    workers = 0 if tap.core is None else tap.core.num_workers
    way = _way_of(tap)
    if way is None or (way.how == "dataset" and workers):  # which hold copies of it
        return {"how": ""}

    tell_epoch(tap, 0)
    tap.run()
    at = max(1, len(tap.notes(0)) // 3)
    states = []
    tell_epoch(tap, 1)  # not epoch 0, whose order a fresh loader may give by itself
    for step, _ in enumerate(tap.epoch(), start=1):
        if step == at:
            states.append(_saved(way, tap))
    ended = tap.ended
    tap.close()

    seen = {"how": way.how, "at": at, "ended": ended, "run": [tap.notes(0), tap.notes(1)]}
    if not rank.all_agree(bool(states)):
        return {**seen, "ways": [], "next": None}

    told = bool(parts(tap, "set_epoch"))
    # Loops differ in whether they call set_epoch after a restart: a state may rely on either.
    restarts = Restarts(target, rank, way)
    ways = [restarts.restored(states[0], at, is_told) for is_told in sorted({False, told})]
    after_end = None
    # Batches that are counted, and an iterator, are of one epoch.
    has_time = ended[0] and rank.left() > time.monotonic() - began
    if way in PROTOCOL and rank.all_agree(has_time):
        after_end = restarts.after_end(told)
    return {**seen, "ways": ways, "next": after_end}


def _started(target: Target, rank: Rank) -> Listener:
    """The loader of a script that has just started, with the same seeds each time."""
    reseed(SEED + rank.rank)
    loader = target.loader()
    tap = Listener(loader, rank, target.options.workers, max_batches=MOST_BATCHES)
    core = tap.core
    original = tap.original
    if core is not None and original is not None:
        if _has(loader, PROTOCOL[0]) or _accelerates(loader):
            # Such a loader asks its sampler for its state.
            core.__dict__.update(sampler=original.sampler, batch_sampler=original.batch_sampler)
    return tap


def _way_of(tap: Listener) -> Way | None:
    """The way of a loader; None if nothing has a state."""
    for way in WAYS:
        holder = _holder(way, tap)
        if holder is not None and (way is SKIP or _has(holder, way)):
            return way
    return None


def _holder(way: Way, tap: Listener) -> Any:
    """What may have a state; None if there is no such thing."""
    core = tap.core
    if way is SKIP:
        is_plain = core is not None and not _has(core, PROTOCOL[0])
        return tap.view if is_plain and _accelerates(tap.view) else None
    if way is ITERATOR:
        # The batches of a DataLoader are drawn ahead of its iterator.
        return None if core is not None else tap.iterator or iter(tap.view)
    part = parts(tap).get(way.how)
    # The state of a map-style dataset (TensorDict's) is what it holds, and no position.
    is_map = way.how == "dataset" and not isinstance(part, IterableDataset)
    return None if is_map else part


def _saved(way: Way, tap: Listener) -> Any:
    """The state of now; None where batches are counted."""
    if way is SKIP:
        return None
    return copy.deepcopy(getattr(_holder(way, tap), way.save)())


def _restore(way: Way, tap: Listener, state: Any, at: int) -> None:
    """Go on after `at` batches of epoch 1 (0: after epoch 0)."""
    if way is SKIP:
        tap.view = sys.modules["accelerate"].skip_first_batches(tap.view, at)
        return
    holder = _holder(way, tap)
    getattr(holder, way.restore)(copy.deepcopy(state))
    if way is ITERATOR:
        tap.restored = holder


@dataclass(frozen=True)
class Restarts:
    """Restarts of one rank's script; `told`: set_epoch(1) is called after them."""

    target: Target
    rank: Rank
    way: Way

    def after_end(self, told: bool) -> Seen | None:
        """What comes after a restart from the state of when epoch 0 had ended; None if the time was
        over before its end."""
        tap = _started(self.target, self.rank)
        tell_epoch(tap, 0)
        tap.run()
        state = _saved(self.way, tap)
        tap.close()
        if not self.rank.all_agree(tap.ended[0]):
            return None
        # A loader that is told no epoch may give the rest of epoch 0 first, which is empty.
        return self.restored(state, 0, told, passes=1 if told else 2)

    def restored(self, state: Any, at: int, told: bool, passes: int = 1) -> Seen:
        """What a loader gives after a restart.

        `passes`: notes of each. `ended`: whether each was read to its end. `error`: what the
        restart raised.
        """
        way = self.way
        tap = _started(self.target, self.rank)
        error = ""
        try:
            # accelerate's loader is made of the one that is listened to, once that knows its epoch.
            if told and way is SKIP:
                tell_epoch(tap, 1)
            _restore(way, tap, state, at)
            if told and way is not SKIP:
                tell_epoch(tap, 1)
            for _ in range(passes):
                tap.run()
        except Exception as raised:
            if way is SKIP:  # it may be our error
                raise
            error = trace.described(raised)["text"]
        tap.close()
        notes = [tap.notes(number) for number in range(len(tap.ended))]
        return {"told": told, "error": error, "passes": notes, "ended": tap.ended}


def _accelerates(loader: Any) -> bool:
    return type(loader).__module__.startswith("accelerate.")


def _has(part: Any, way: Way) -> bool:
    """Whether it has save() and restore(state), without more arguments."""
    try:
        inspect.signature(getattr(part, way.save)).bind()
        inspect.signature(getattr(part, way.restore)).bind({})
    except (AttributeError, TypeError, ValueError):
        return False
    return True
