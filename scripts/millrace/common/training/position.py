"""Where a run is in its plan: enough to go on exactly, also with another number of ranks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Position:
    """`epoch` and `step` say what comes next: step `step` of the plan for `world_size` ranks.

    A step of the plan is one batch on every rank; `optimizer_step` counts updates of the weights.
    When ranks come or go in the middle of an epoch, the rest of it is planned anew: `spans` holds
    (world size, steps done) of the plans before, `step` begins again at 0. `samples` counts the
    whole run, `epoch_samples` this epoch; `history` says from which optimiser step on there were
    how many ranks; `seconds` is the time spent in steps.
    """

    epoch: int = 0
    step: int = 0
    world_size: int = 1
    spans: tuple[tuple[int, int], ...] = ()
    optimizer_step: int = 0
    samples: int = 0
    epoch_samples: int = 0
    history: tuple[tuple[int, int], ...] = ()
    seconds: float = 0.0

    def enter(self, world_size: int) -> None:
        if world_size != self.world_size:
            spans = list(self.spans)
            if self.step:
                spans.append((self.world_size, self.step))
            self.step = 0
            if spans and spans[-1][0] == world_size:
                # Nothing was done in between: that plan goes on where it was left.
                self.step = spans.pop()[1]
            self.spans = tuple(spans)
            self.world_size = world_size

        # What began at this very step has done nothing.
        history = [pair for pair in self.history if pair[0] < self.optimizer_step]
        if not history or history[-1][1] != world_size:
            history.append((self.optimizer_step, world_size))
        self.history = tuple(history)

    def end_epoch(self) -> None:
        self.epoch += 1
        self.step = 0
        self.spans = ()
        self.epoch_samples = 0

    @classmethod
    def from_dict(cls, value: dict) -> Position:
        """The position that `asdict` described (tuples may have become lists)."""
        pairs = {}
        for name in ("spans", "history"):
            pairs[name] = tuple((int(a), int(b)) for a, b in value[name])
        return cls(**{**value, **pairs})
