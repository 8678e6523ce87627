"""A loader restored in the middle of an epoch, and from the state of one that has ended, in the way
of the library that keeps its state."""

from __future__ import annotations

import copy
import inspect
import sys
import time
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch.utils.data import IterableDataset

from millrace.audit.probes.epochs import (
    MOST_BATCHES,
    PLACES,
    is_accelerated,
    parts,
    tell_epoch,
)
from millrace.audit.runner import trace
from millrace.audit.runner.listener import SEED, Listener, reseed
from millrace.audit.runner.probes import Seen
from millrace.audit.runner.target import Rank, Target


class Way(NamedTuple):
    """A way in which a library saves and restores the position of a loader.

    `how`: its name in findings. `of`: what has the methods `save` and `restore`, as
    `Script.holder` knows it.
    """

    how: str
    of: str
    save: str
    restore: str


SKIP = Way("skip_first_batches", "accelerated", "", "")
METHODS = ("state_dict", "load_state_dict")
# The first that a loader has is tried.
WAYS = (
    # accelerate's function for loaders without a state, which transformers' Trainer calls too:
    # batches are counted, and nothing is saved.
    SKIP,
    # torch's protocol: torchdata, lhotse, litdata, Lightning's checkpoint of a loader.
    *(Way(place, place, *METHODS) for place in ("loader", *PLACES)),
    # Megatron Energon's SavableDataLoader.
    Way("restore_state_rank", "loader", "save_state_rank", "restore_state_rank"),
    # Lightning's checkpoint of a data module.
    Way("module", "module", *METHODS),
    # Grain's iterators.
    Way("iterator", "iterator", "get_state", "set_state"),
)


class Script(NamedTuple):
    """A script that has just started: its loader, and the data module that made it, if one did."""

    tap: Listener
    module: Any

    def holder(self, name: str) -> Any:
        """What may have a state; None if there is no such thing."""
        if name == "accelerated":
            is_plain = self.tap.core is not None and not _has(self.tap.core, *METHODS)
            if is_plain and is_accelerated(self.tap.view):
                return self.tap.view
            return None
        if name == "module":
            return self.module
        if name == "iterator":
            # The batches of a DataLoader are drawn ahead of its iterator.
            if self.tap.core is None:
                return iter(self.tap.view)
            return None
        part = parts(self.tap).get(name)
        # The state of a map-style dataset (TensorDict's) is what it holds, and no position.
        is_map = name == "dataset" and not isinstance(part, IterableDataset)
        return None if is_map else part


def way_of(script: Script) -> Way | None:
    """The way of a loader; None if nothing has a state."""
    for way in WAYS:
        holder = script.holder(way.of)
        if holder is None:
            continue
        if way is SKIP:
            return way
        if not _has(holder, way.save, way.restore):
            continue
        # Every data module of Lightning has a state, which is empty unless it is its own.
        if way.of != "module" or holder.state_dict():
            return way
    return None


def saved(way: Way, script: Script) -> Any:
    """The state of now; None where batches are counted."""
    if way is SKIP:
        return None
    if way.of == "iterator":
        holder = script.tap.iterator
    else:
        holder = script.holder(way.of)
    return copy.deepcopy(getattr(holder, way.save)())


def restore(way: Way, script: Script, state: Any, at: int) -> None:
    """Go on after `at` batches of epoch 1 (0: after epoch 0). A data module has its state
    already."""
    tap = script.tap
    if way is SKIP:
        tap.view = sys.modules["accelerate"].skip_first_batches(tap.view, at)
    elif way.of != "module":
        holder = script.holder(way.of)
        getattr(holder, way.restore)(copy.deepcopy(state))
        if way.of == "iterator":
            tap.restored = holder


@dataclass(frozen=True)
class Restarts:
    """Restarts of one rank's script, each with the same seeds."""

    target: Target
    rank: Rank

    def made(self) -> Any:
        """What a script that has just started makes."""
        reseed(SEED + self.rank.rank)
        return self.target.made()

    def script(self, made: Any) -> Script:
        """The script that has made it, with its loader."""
        loader = self.target.loader_of(made)
        workers = self.target.options.workers
        tap = Listener(loader, self.rank, workers, max_batches=MOST_BATCHES)
        core = tap.core
        original = tap.original
        if core is not None and original is not None:
            if _has(loader, *METHODS) or is_accelerated(loader):
                # Such a loader asks its sampler for its state.
                core.__dict__.update(sampler=original.sampler, batch_sampler=original.batch_sampler)
        return Script(tap, None if made is loader else made)

    def started(self) -> Script:
        """A script that has just started."""
        return self.script(self.made())

    def after_end(self, way: Way, told: bool) -> Seen | None:
        """What comes after a restart from the state of when epoch 0 had ended; None if the time was
        over before its end."""
        script = self.started()
        tell_epoch(script.tap, 0)
        script.tap.run()
        state = saved(way, script)
        script.tap.close()
        if not self.rank.all_agree(script.tap.ended[0]):
            return None
        # A loader that is told no epoch may give the rest of epoch 0 first, which is empty.
        passes = 1 if told else 2
        return self.restored(way, state, 0, told, passes)

    def restored(self, way: Way, state: Any, at: int, told: bool, passes: int = 1) -> Seen:
        """What a loader gives after a restart.

        `told`: set_epoch(1) was called. `passes`: notes of each. `ended`: whether each was read to
        its end. `error`: what the restart raised.
        """
        seen: Seen = {
            "told": told,
            "error": "",
            "passes": [],
            "ended": [],
        }
        made = self.made()
        try:
            if way.of == "module":  # as Lightning does: then it is asked for its loader
                getattr(made, way.restore)(copy.deepcopy(state))
            script = self.script(made)
        except Exception as error:
            return {**seen, "error": trace.described(error)["text"]}

        tap = script.tap
        try:
            # accelerate's loader is made of the one that is listened to, once that knows its epoch.
            if told and way is SKIP:
                tell_epoch(tap, 1)
            restore(way, script, state, at)
            if told and way is not SKIP:
                tell_epoch(tap, 1)
            for _ in range(passes):
                tap.run()
        except Exception as error:
            if way is SKIP:  # it may be our error
                raise
            seen["error"] = trace.described(error)["text"]
        tap.close()
        notes = [tap.notes(number) for number in range(len(tap.ended))]
        return {**seen, "passes": notes, "ended": tap.ended}


def resume(target: Target, rank: Rank) -> Seen:
    """`run`: epochs 0 and 1 undisturbed. `ways`: epoch 1 after a restart and `at` batches, with
    equal seeds; none if epoch 1 had fewer. `next`: what comes after a restart from the state of
    when epoch 0 had ended; None if there was no time.

    `how`: the way of keeping a state, or "" if there is none.
    """
    began = time.monotonic()
    restarts = Restarts(target, rank)
    script = restarts.started()
    tap = script.tap
    workers = 0 if tap.core is None else tap.core.num_workers
    way = way_of(script)
    if way is None or (way.of == "dataset" and workers):  # which hold copies of it
        return {"how": ""}

    tell_epoch(tap, 0)
    tap.run()
    at = max(1, len(tap.notes(0)) // 3)
    states = []
    tell_epoch(tap, 1)  # not epoch 0, whose order a fresh loader may give by itself
    for step, _ in enumerate(tap.epoch(), start=1):
        if step == at:
            states.append(saved(way, script))
    ended = tap.ended
    tap.close()

    run = [tap.notes(0), tap.notes(1)]
    seen = {"how": way.how, "at": at, "ended": ended, "run": run}
    if not rank.all_agree(bool(states)):
        return {**seen, "ways": [], "next": None}

    told = bool(parts(tap, "set_epoch"))
    # Loops differ in whether they call set_epoch after a restart: a state may rely on either.
    ways = [restarts.restored(way, states[0], at, is_told) for is_told in sorted({False, told})]
    after_end = None
    # Batches that are counted, and an iterator, are of one epoch.
    is_of_an_epoch = way is SKIP or way.of == "iterator"
    if not is_of_an_epoch and rank.all_agree(ended[0] and rank.left() > time.monotonic() - began):
        after_end = restarts.after_end(way, told)
    return {**seen, "ways": ways, "next": after_end}


def _has(part: Any, save: str, restore: str) -> bool:
    """Whether it has save() and restore(state), without more arguments."""
    try:
        inspect.signature(getattr(part, save)).bind()
        inspect.signature(getattr(part, restore)).bind({})
    except (AttributeError, TypeError, ValueError):
        return False
    return True
