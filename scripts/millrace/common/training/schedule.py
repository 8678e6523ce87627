"""Learning rates: warm-up, then cosine, linear or constant; pure in the step, steady if the end
moves."""

from __future__ import annotations

import math
from dataclasses import dataclass

KINDS = ("cosine", "linear", "constant")


@dataclass
class Schedule:
    """The factor of the learning rate at optimiser step 0, 1, ... of `total_steps`.

    Warm-up: (step + 1) / (warmup_steps + 1). Then, with the share p of the way from there to the
    end: cosine (1 + cos(pi p)) / 2, linear 1 - p, constant 1.

    The number of steps ahead changes with the number of ranks and the plan of each epoch.
    `move_end` then leads from the share reached to the new end, without a jump.
    """

    kind: str
    warmup_steps: int
    total_steps: int
    anchor_step: int = 0
    anchor_share: float = 0.0

    def __post_init__(self) -> None:
        self.anchor_step = max(self.anchor_step, self.warmup_steps)

    def share(self, step: int) -> float:
        """The share (0 to 1) of the way from the end of the warm-up to the end of the run."""
        ahead = self.total_steps - self.anchor_step
        past = max(step - self.anchor_step, 0)
        if ahead > 0:
            done = min(past / ahead, 1.0)
        else:
            done = float(step >= self.total_steps)
        return self.anchor_share + (1.0 - self.anchor_share) * done

    def factor(self, step: int) -> float:
        """What the learning rate is multiplied by at `step`."""
        if step < self.warmup_steps:
            return (step + 1) / (self.warmup_steps + 1)
        if self.kind == "constant":
            return 1.0
        share = self.share(step)
        if self.kind == "cosine":
            return (1.0 + math.cos(math.pi * share)) / 2.0
        return 1.0 - share

    def move_end(self, step: int, total_steps: int) -> None:
        """From `step` on, lead to `total_steps` instead; nothing changes where that was the end
        already."""
        if total_steps != self.total_steps:
            self.anchor_share = self.share(step)
            self.anchor_step = max(step, self.warmup_steps)
            self.total_steps = total_steps
