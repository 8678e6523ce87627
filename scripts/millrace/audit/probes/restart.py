"""A loader restored in the middle of an epoch, and from the state of one that has ended."""

from __future__ import annotations

import copy
import inspect
import sys
import time
from dataclasses import dataclass
from typing import Any

from torch.utils.data import IterableDataset

from millrace.audit.probes.epochs import MOST_BATCHES, parts, tell_epoch
from millrace.audit.runner import trace
from millrace.audit.runner.listener import Listener, reseed
from millrace.audit.runner.probes import Seen
from millrace.audit.runner.target import Options, Rank, Target


@dataclass(frozen=True)
class Keeper:
    """The part of a loader that has its state. A state that is kept in another way is a subclass of
    this, and a line of `_keeper`."""

    how: str

    def save(self, tap: Listener) -> Any:
        return copy.deepcopy(parts(tap)[self.how].state_dict())

    def restore(self, tap: Listener, state: Any, at: int) -> None:
        """Go on after `at` batches of epoch 1; 0: after epoch 0."""
        parts(tap)[self.how].load_state_dict(copy.deepcopy(state))


class Skipping(Keeper):
    """accelerate's function for loaders without a state: it makes another loader."""

    def save(self, tap: Listener) -> None:
        """Nothing: the batches are counted."""

    def restore(self, tap: Listener, state: Any, at: int) -> None:
        tap.view = sys.modules["accelerate"].skip_first_batches(tap.view, at)


@dataclass(frozen=True)
class Restarts:
    """Restarts of one rank's script, each with the same seeds."""

    target: Target
    options: Options
    rank: Rank

    def started(self) -> Listener:
        """The loader of a script that has just started."""
        reseed(self.options.seed + self.rank.rank)
        loader = self.target.loader()
        tap = Listener(loader, self.rank, self.options.workers, max_batches=MOST_BATCHES)
        core, original = tap.core, tap.original
        if core is None or original is None:
            return tap
        if _stateful(loader) or _accelerates(loader):
            # Such a loader asks its sampler for its state.
            core.__dict__.update(sampler=original.sampler, batch_sampler=original.batch_sampler)
        return tap

    def ended(self, keeper: Keeper) -> Any:
        """The state of when epoch 0 had ended."""
        tap = self.started()
        tell_epoch(tap, 0)
        tap.run()
        state = keeper.save(tap)
        tap.close()
        return state

    def restored(self, keeper: Keeper, state: Any, at: int, told: bool, passes: int = 1) -> Seen:
        """What a loader gives after a restart.

        `told`: set_epoch(1) was called. `passes`: notes of each. `ended`: whether each was read to
        its end. `raised`: what the restart raised.
        """
        tap = self.started()
        raised = None
        is_ours = isinstance(keeper, Skipping)
        try:
            # Its loader is made of the one that is listened to, once that knows its epoch.
            if told and is_ours:
                tell_epoch(tap, 1)
            keeper.restore(tap, state, at)
            if told and not is_ours:
                tell_epoch(tap, 1)
            for _ in range(passes):
                tap.run()
        except Exception as error:
            if is_ours:  # it may be our error
                raise
            raised = trace.described(error)
        tap.close()
        notes = [tap.notes(number) for number in range(len(tap.ended))]
        return {"told": told, "raised": raised, "passes": notes, "ended": tap.ended}


def resume(target: Target, options: Options, rank: Rank) -> Seen:
    """`run`: epochs 0 and 1 undisturbed. `ways`: epoch 1 after a restart and `at` batches, with
    equal seeds. `next`: what comes after a restart from the state of when epoch 0 had ended; None
    if there was no time.

    `how`: the part that has the state, or "" if none has one. `ahead`: workers draw before the loop
    sees.
    """
    began = time.monotonic()
    restarts = Restarts(target, options, rank)
    tap = restarts.started()
    workers = 0 if tap.core is None else tap.core.num_workers
    keeper = _keeper(tap)
    if keeper is None or (keeper.how == "dataset" and workers):  # which hold copies of it
        return {"how": ""}

    tell_epoch(tap, 0)
    tap.run()
    at = max(1, len(tap.notes(0)) // 3)
    state = None
    tell_epoch(tap, 1)  # not epoch 0, whose order a fresh loader may give by itself
    for step, _ in enumerate(tap.epoch(), start=1):
        if step == at:
            state = keeper.save(tap)
    run = [tap.notes(0), tap.notes(1)]
    ended = tap.ended
    tap.close()

    told = bool(parts(tap, "set_epoch"))
    # Loops differ in whether they call set_epoch after a restart: a state may rely on either.
    ways = [restarts.restored(keeper, state, at, False)]
    if told:
        ways.append(restarts.restored(keeper, state, at, True))
    after_end = None
    is_counted = isinstance(keeper, Skipping)
    if not is_counted and rank.all_agree(ended[0] and rank.left() > time.monotonic() - began):
        # A loader that is told no epoch may give the rest of epoch 0 first, which is empty.
        passes = 1 if told else 2
        after_end = restarts.restored(keeper, restarts.ended(keeper), 0, told, passes)
    return {
        "how": keeper.how,
        "at": at,
        "run": run,
        "ended": ended,
        "ahead": bool(workers),
        "ways": ways,
        "next": after_end,
    }


def _keeper(tap: Listener) -> Keeper | None:
    if tap.core is not None and _accelerates(tap.view) and not _stateful(tap.core):
        return Skipping("skip_first_batches")
    for place, part in parts(tap).items():
        # The state of a map-style dataset (TensorDict's) is what it holds, and no position.
        if place == "dataset" and not isinstance(part, IterableDataset):
            continue
        if _stateful(part):
            return Keeper(place)
    return None


def _accelerates(loader: Any) -> bool:
    return type(loader).__module__.startswith("accelerate.")


def _stateful(part: Any) -> bool:
    """Whether it has state_dict() and load_state_dict(state), without more arguments."""
    try:
        inspect.signature(part.state_dict).bind()
        inspect.signature(part.load_state_dict).bind({})
    except (AttributeError, TypeError, ValueError):
        return False
    return True
