"""Ranks whose time is over, or whose neighbour's is, when a test says so."""

from __future__ import annotations

from dataclasses import dataclass, field

from millrace.audit.runner.target import Rank


@dataclass(frozen=True)
class Clock(Rank):
    """A rank whose time is over once `seconds` is empty."""

    seconds: list[float] = field(default_factory=list)

    def left(self) -> float:
        return self.seconds[0] if self.seconds else 0.0


class BesideALateOne(Clock):
    """A rank that has time, beside one that has none."""

    def all_agree(self, yes: bool) -> bool:
        return False
