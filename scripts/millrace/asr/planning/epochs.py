"""The plans of all epochs of a loader, and its state: any number of ranks can go on from it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from millrace.asr.planning.cut import BatchBudget
from millrace.asr.planning.plan import Plan
from millrace.asr.planning.planner import WINDOW, check_rows, plan_epoch, plan_rest, replan
from millrace.common.errors import MillraceError
from millrace.common.loading.arguments import whole
from millrace.common.training.position import Position

# What the plans rest on, by the name that a user knows it by: "seed", "seconds", "buckets".
Basis = Mapping[str, str | int | float]
_WHERE = "state of the loader"


def digest(arrays: Sequence[np.ndarray]) -> str:
    """16 hexadecimal digits of the content of arrays and of where each ends."""
    sha256 = hashlib.sha256()
    for array in arrays:
        sha256.update(len(array).to_bytes(8, "little"))
        sha256.update(np.ascontiguousarray(array).data)
    return sha256.hexdigest()[:16]


@dataclass(frozen=True)
class EpochPlans:
    """Gives the plan of an epoch by its number, and goes on in one where other ranks have stopped.

    `durations`: seconds of the rows of each bucket. `basis`: what a state must have in common with
    this loader; it names at least what decides on the rows, the budget and the seed. `window`:
    that of `plan_epoch`.

        plans = EpochPlans(durations, BatchBudget(240.0), 42, 8, {"rows": digest(durations), ...})
        state = plans.state(plans(epoch=3), step=17)
        plan, step = replace(plans, world_size=5).resumed(state)
    """

    durations: Sequence[np.ndarray]
    budget: BatchBudget
    seed: int
    world_size: int
    basis: Basis
    window: int | None = WINDOW

    def __post_init__(self) -> None:
        # Plans are made when they are needed: what can never be planned is refused before.
        check_rows(self.durations, self.world_size, self.window)

    def __call__(self, epoch: int) -> Plan:
        return self._plan(epoch, self.world_size, ())

    def state(self, plan: Plan, step: int) -> dict[str, Any]:
        """What `resumed` takes, as JSON holds it: the same on every rank that has done `step`
        steps."""
        return {
            "epoch": plan.epoch,
            "step": step,
            "world_size": plan.world_size,
            "spans": [list(span) for span in plan.spans],
            "plan_crc32": plan.crc32,
            "basis": dict(self.basis),
        }

    def resumed(self, state: Mapping[str, Any]) -> tuple[Plan, int]:
        """The plan in which to go on, and the next step of it.

        With another number of ranks it is the plan of the rows that are left of the epoch; after
        its end there are none. Raises MillraceError for a state that rests on something else, by
        its name.
        """
        saved = _State.parse(state, self.world_size)
        self._check(saved.basis)
        plan = self._plan(saved.epoch, saved.world_size, saved.spans)
        if plan.crc32 != saved.crc32 or not 0 <= saved.step <= len(plan):
            problem = f"the loader's state of epoch {saved.epoch} belongs to another plan"
            remedy = "Take the data, settings, seed and version of Millrace of that run"
            raise MillraceError(problem, _WHERE, remedy)

        if saved.world_size == self.world_size:
            return plan, saved.step
        if saved.step:
            return replan(plan, saved.step, self.world_size), 0

        # Nothing was done with those ranks: go on where the ones before them have stopped.
        position = Position(saved.epoch, saved.step, saved.world_size, saved.spans)
        position.enter(self.world_size)
        return self._plan(saved.epoch, self.world_size, position.spans), position.step

    def _plan(self, epoch: int, world_size: int, spans: Sequence[tuple[int, int]]) -> Plan:
        def whole(ranks: int) -> Plan:
            return plan_epoch(self.durations, self.budget, self.seed, epoch, ranks, self.window)

        return plan_rest(whole, spans, world_size)

    def _check(self, saved: Basis) -> None:
        if not saved:
            return  # a state of 0.4, which has only the checksum of its plan
        for name in {**saved, **self.basis}:
            before = saved.get(name)
            now = self.basis.get(name)
            if before != now:
                problem = f"the state was taken with {name} {before}, and the loader has {now}"
                remedy = f"Open the loader with the {name} of that run, or begin without its state"
                raise MillraceError(problem, _WHERE, remedy)


class _State(NamedTuple):
    epoch: int
    step: int
    world_size: int
    spans: tuple[tuple[int, int], ...]
    crc32: int
    basis: Basis

    @classmethod
    def parse(cls, state: Mapping[str, Any], world_size: int) -> _State:
        """The record of a state; one of 0.4 has no world size, and is taken as of `world_size`."""
        try:
            saved = cls(
                epoch=whole("epoch", state["epoch"]),
                step=whole("step", state["step"]),
                world_size=whole("world_size", state.get("world_size", world_size), least=1),
                spans=tuple(
                    (whole("spans", ranks, least=1), whole("spans", steps, least=0))
                    for ranks, steps in state.get("spans", ())
                ),
                crc32=whole("plan_crc32", state["plan_crc32"]),
                basis=dict(state.get("basis", {})),
            )
        except (AttributeError, KeyError, TypeError, ValueError, MillraceError) as error:
            problem = f"this is no state of a loader ({type(error).__name__}: {error})"
            raise MillraceError(problem, _WHERE, "Give what state_dict gave") from None
        return saved
