"""The batches of a soak: many shuffled ones at the chosen size, the heaviest of the plan among them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from scripts.asr import planner
from scripts.asr.batch_cut import BatchBudget, batch_cost
from scripts.asr.plan import Plan


class SoakPlan:
    """At least `steps` steps of as many epochs as that takes, in their shuffled order. A Plan for BucketedDataset.

    `durations`: seconds of the rows of every bucket that takes part; `first` is the number of the first row of the
    first one. Of an epoch with more steps, evenly spaced ones, and the heaviest of every bucket, which come on top.
    """

    def __init__(
        self,
        durations: Sequence[np.ndarray],
        budgets: Sequence[BatchBudget],
        steps: int,
        seed: int,
        world_size: int = 1,
        first: int = 0,
    ) -> None:
        self.first = first
        self.chosen: list[tuple[Plan, int]] = []
        epoch = 0
        while len(self.chosen) < steps:
            plan = planner.plan_epoch(durations, budgets, seed, epoch, world_size)
            wanted = min(steps - len(self.chosen), len(plan))
            numbers = set(np.linspace(0, len(plan) - 1, wanted).astype(int).tolist())
            if not epoch:
                numbers |= set(_heaviest(plan))
            self.chosen += [(plan, number) for number in sorted(numbers)]
            epoch += 1

    def __len__(self) -> int:
        return len(self.chosen)

    def batch(self, step: int, rank: int) -> np.ndarray:
        plan, number = self.chosen[step]
        return plan.batch(number, rank) + self.first

    def is_filler(self, step: int, rank: int) -> bool:
        plan, number = self.chosen[step]
        return plan.is_filler(number, rank)


def _heaviest(plan: Plan) -> list[int]:
    """The step of each bucket in which any rank has the most padded work."""
    weight = batch_cost(np.diff(plan.offsets), plan.longest).reshape(len(plan), plan.world_size)
    bucket = np.asarray(plan.bucket).reshape(weight.shape)
    return [int(np.where(bucket == number, weight, -1).max(axis=1).argmax()) for number in np.unique(bucket).tolist()]
