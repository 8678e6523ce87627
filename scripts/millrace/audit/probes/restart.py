"""A loader restored in the middle of an epoch, and from the state of one that has ended."""

from __future__ import annotations

import copy
import inspect
import sys
import time
from dataclasses import dataclass
from typing import Any

from torch.utils.data import IterableDataset

from millrace.audit.probes.epochs import MOST_BATCHES, PLACES, parts, tell_epoch
from millrace.audit.runner import trace
from millrace.audit.runner.listener import SEED, Listener, reseed
from millrace.audit.runner.probes import Seen
from millrace.audit.runner.target import Rank, Target

# accelerate's function for loaders without a state, which transformers' Trainer calls too:
# batches are counted, and nothing is saved.
SKIP = "skip_first_batches"
# What may have state_dict() and load_state_dict(state), the protocol of torchdata, lhotse, litdata,
# and Lightning's checkpoint of a loader. The first that has both is taken.
HOLDERS = ("loader", *PLACES)


def resume(target: Target, rank: Rank) -> Seen:
    """`run`: epochs 0 and 1 undisturbed. `ways`: epoch 1 after a restart and `at` batches, with
    equal seeds; none if epoch 1 had fewer. `next`: what comes after a restart from the state of
    when epoch 0 had ended; None if there was no time.

    `how`: the way of keeping a state, or "" if none is known. `is_plain`: of a DataLoader.
    """
    began = time.monotonic()
    tap = _started(target, rank)
    workers = 0 if tap.core is None else tap.core.num_workers
    way = _way_of(tap)
    if not way or (way == "dataset" and workers):  # which hold copies of it
        return {"how": "", "is_plain": tap.core is not None}

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

    seen = {"how": way, "at": at, "ended": ended, "run": [tap.notes(0), tap.notes(1)]}
    if not rank.all_agree(bool(states)):
        return {**seen, "ways": [], "next": None}

    told = bool(parts(tap, "set_epoch"))
    # Loops differ in whether they call set_epoch after a restart: a state may rely on either.
    restarts = Restarts(target, rank, way)
    ways = [restarts.restored(states[0], at, is_told) for is_told in sorted({False, told})]
    after_end = None
    # Batches that are counted are of one epoch.
    has_time = ended[0] and rank.left() > time.monotonic() - began
    if way != SKIP and rank.all_agree(has_time):
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
        if _has_state(loader) or _accelerates(loader):
            # Such a loader asks its sampler for its state.
            core.__dict__.update(sampler=original.sampler, batch_sampler=original.batch_sampler)
    return tap


def _way_of(tap: Listener) -> str:
    """What has the state of a loader, or SKIP; "" if nothing has one."""
    core = tap.core
    if core is not None and not _has_state(core) and _accelerates(tap.view):
        return SKIP
    holders = parts(tap)
    for place in HOLDERS:
        holder = holders.get(place)
        # The state of a map-style dataset (TensorDict's) is what it holds, and no position.
        is_map = place == "dataset" and not isinstance(holder, IterableDataset)
        if _has_state(holder) and not is_map:
            return place
    return ""


def _saved(way: str, tap: Listener) -> Any:
    """The state of now; None where batches are counted."""
    if way == SKIP:
        return None
    return copy.deepcopy(parts(tap)[way].state_dict())


def _restore(way: str, tap: Listener, state: Any, at: int) -> None:
    """Go on after `at` batches of epoch 1 (0: after epoch 0)."""
    if way == SKIP:
        tap.view = sys.modules["accelerate"].skip_first_batches(tap.view, at)
    else:
        parts(tap)[way].load_state_dict(copy.deepcopy(state))


@dataclass(frozen=True)
class Restarts:
    """Restarts of one rank's script; `told`: set_epoch(1) is called after them."""

    target: Target
    rank: Rank
    way: str

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
            if told and way == SKIP:
                tell_epoch(tap, 1)
            _restore(way, tap, state, at)
            if told and way != SKIP:
                tell_epoch(tap, 1)
            for _ in range(passes):
                tap.run()
        except Exception as raised:
            if way == SKIP:  # it may be our error
                raise
            error = trace.described(raised)["text"]
        tap.close()
        notes = [tap.notes(number) for number in range(len(tap.ended))]
        return {"told": told, "error": error, "passes": notes, "ended": tap.ended}


def _accelerates(loader: Any) -> bool:
    return type(loader).__module__.startswith("accelerate.")


def _has_state(part: Any) -> bool:
    """Whether it has state_dict() and load_state_dict(state), without more arguments."""
    try:
        inspect.signature(part.state_dict).bind()
        inspect.signature(part.load_state_dict).bind({})
    except (AttributeError, TypeError, ValueError):
        return False
    return True
