"""The ledger of a stage: rows in = rows out + rejected by reason, or the stage fails."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from millrace.common.errors import MillraceError, counted

_COUNTS = ("rejected", "repaired", "warnings")


@dataclass
class Ledger:
    """Counts of one stage, for one scope (a country, a bucket, a partition).

    `rejected` counts what left, by reason; `repaired` and `warnings` count what was kept all the
    same, and take no part in the balance. `unit` says what one row is (segment, file, member).
    """

    stage: str
    scope: str
    unit: str = "segment"
    rows_in: int = 0
    rows_out: int = 0
    rejected: Counter = field(default_factory=Counter)
    repaired: Counter = field(default_factory=Counter)
    warnings: Counter = field(default_factory=Counter)

    def __post_init__(self) -> None:
        for name in _COUNTS:
            setattr(self, name, Counter(getattr(self, name)))

    @property
    def rows_rejected(self) -> int:
        """Rejects of all reasons."""
        return sum(self.rejected.values())

    def line(self) -> str:
        """One line for the log."""
        counts = (
            f"{counted(self.rows_in, self.unit)} in, {self.rows_out} out, {self.rows_rejected}"
            " rejected"
        )
        text = f"{self.scope}: {counts}"
        for name in _COUNTS:
            if reasons := sorted(getattr(self, name).items()):
                text += f"; {name}: " + ", ".join(f"{count} {reason}" for reason, count in reasons)
        return text

    def too_many_errors(self, choices: Collection[str], max_error_fraction: float) -> str:
        """A sentence if more than allowed was rejected for other reasons than `choices`, else
        empty."""
        errors = self.errors(choices)
        if sum(errors.values()) <= max_error_fraction * self.rows_in:
            return ""
        return (
            f"{sum(errors.values())} of {counted(self.rows_in, self.unit)} are in error "
            f"({self.reasons(choices)}), more than "
            f"max_error_fraction {max_error_fraction:g} allows"
        )

    def reasons(self, choices: Collection[str] = ()) -> str:
        """The rejects for other reasons than `choices` in words, the most frequent first."""
        by_count = sorted(self.errors(choices).items(), key=lambda row: -row[1])
        return ", ".join(f"{count} {reason}" for reason, count in by_count)

    def errors(self, choices: Collection[str]) -> dict[str, int]:
        """Rejects by reason, apart from those by choice of the run."""
        return {
            reason: count
            for reason, count in self.rejected.items()
            if reason not in choices and count
        }

    def check(self) -> None:
        """Raise if rows in differ from rows out plus rejects: a row disappeared, or was counted
        twice."""
        if self.rows_in != self.rows_out + self.rows_rejected:
            raise MillraceError(
                f"the ledger does not add up: {counted(self.rows_in, self.unit)} in,"
                f" {self.rows_out} out, {self.rows_rejected} rejected ({self.reasons()})",
                f"{self.stage} {self.scope}",
                "This is a defect of Millrace, not of the data: please report it with the log",
            )

    def as_dict(self) -> dict:
        """JSON-ready, with sorted reasons. Raises as `check`: what does not add up is never
        written."""
        self.check()
        plain = ("stage", "scope", "unit", "rows_in", "rows_out", "rows_rejected")
        counts = {name: dict(sorted(getattr(self, name).items())) for name in _COUNTS}
        return {**{name: getattr(self, name) for name in plain}, **counts}

    @classmethod
    def from_dict(cls, value: dict) -> Ledger:
        """The ledger that `as_dict` described."""
        return cls(**{name: value[name] for name in cls.__dataclass_fields__})

    @classmethod
    def total(
        cls, stage: str, scope: str, parts: Iterable[Ledger], unit: str = "segment"
    ) -> Ledger:
        """The sum of ledgers of the same stage."""
        result = cls(stage, scope, unit)
        for part in parts:
            result.rows_in += part.rows_in
            result.rows_out += part.rows_out
            for name in _COUNTS:
                getattr(result, name).update(getattr(part, name))
        return result
