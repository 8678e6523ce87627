"""Where a run is in its plan: enough to go on exactly, also with another number of ranks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Position:
    """`epoch` and `step` say what comes next: step `step` of the plan for `world_size` ranks.

    A step of the plan is one batch on every rank; `optimizer_step` counts updates of the weights.
    When ranks come or go in the middle of an epoch, the rest of it is planned anew: `spans` holds
    (world size, steps done) of the plans before, `step` begins again at 0. `samples` counts the
    whole run, `epoch_samples` this epoch; `seconds` is the time spent in steps.
    """

    epoch: int = 0
    step: int = 0
    world_size: int = 1
    spans: tuple[tuple[int, int], ...] = ()
    optimizer_step: int = 0
    samples: int = 0
    epoch_samples: int = 0
    seconds: float = 0.0

    def enter(self, world_size: int) -> None:
        if world_size == self.world_size:
            return
        spans = list(self.spans)
        if self.step:
            spans.append((self.world_size, self.step))
        self.step = 0
        if spans and spans[-1][0] == world_size:
            # Nothing was done in between: that plan goes on where it was left.
            self.step = spans.pop()[1]
        self.spans = tuple(spans)
        self.world_size = world_size

    def end_epoch(self) -> None:
        self.epoch += 1
        self.step = 0
        self.spans = ()
        self.epoch_samples = 0
