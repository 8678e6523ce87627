"""Samples that cannot be used: their reasons, their counts, and the share of them that stops a
run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from millrace.common.errors import MillraceError, Unusable
from millrace.common.loading.arguments import share

_EXAMPLES = 5
_JUDGED_ROWS = 1000  # before that many rows, a share of bad ones says little


class SampleError(Unusable):
    """A sample that cannot be used."""


@dataclass(frozen=True)
class BadSample:
    """A row that was left out of its batch, and why."""

    row: int
    sample_id: int
    reason: str
    message: str


class BadSamples:
    """Counts of what was left out over all workers of a rank; `check` stops a run that loses too
    much.

    The share is taken of at least 1,000 of `rows` (or of all): one bad sample after a resume stops
    nothing. `place(row, message)` names a row for people, `key` the limit.
    """

    key = "max_bad_fraction"

    def __init__(
        self, max_bad_fraction: float, rows: int, place: Callable[[int, str], str]
    ) -> None:
        self.max_bad_fraction = share(self.key, max_bad_fraction)
        self.place = place
        self.judged_rows = min(_JUDGED_ROWS, rows)
        self.planned = 0
        self.reasons: Counter[str] = Counter()
        self.examples: list[BadSample] = []

    @property
    def count(self) -> int:
        return sum(self.reasons.values())

    def add(self, batch: Any) -> None:
        """Count the samples of a batch (those of a filler are counted in the batch that it
        repeats)."""
        if batch.filler:
            return
        self.planned += batch.planned
        for sample in batch.bad:
            self.reasons[sample.reason] += 1
            if len(self.examples) < _EXAMPLES:
                self.examples.append(sample)

    def check(self) -> None:
        """Raise MillraceError if the share of bad samples is above the limit."""
        if self.count <= self.max_bad_fraction * max(self.planned, self.judged_rows):
            return
        reasons = ", ".join(f"{reason} {count}" for reason, count in self.reasons.most_common())
        examples = "; ".join(
            f"{self.place(bad.row, bad.message)} ({bad.reason}): {bad.message}"
            for bad in self.examples
        )
        raise MillraceError(
            f"{self.count} of {self.planned} samples so far cannot be used, more than"
            f" {self.key} {self.max_bad_fraction:g} allows ({reasons}). Examples: {examples}",
            remedy=f"Mend or remove these samples and build their index again, or raise {self.key}",
        )
