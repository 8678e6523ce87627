"""What becomes of training data that is also held out, and what people are told of it.

What is held out wins: what train shares with validation or test is a leak of train, what validation
shares with test is one of validation.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from millrace.common import jsonl
from millrace.common.errors import MillraceError, counted
from millrace.common.ledger import Ledger

REJECT = "reject"  # leaks leave their split, and are counted
KEEP = "keep"  # leaks stay, and are counted
ERROR = "error"  # a leak ends the step
WORDS = (REJECT, KEEP, ERROR)
# How copies of what is held out are found.
BY_SOUND = "audio"
BY_BYTES = "bytes"
NOT_AT_ALL = "none"
COPIES = (BY_SOUND, BY_BYTES, NOT_AT_ALL)
HELP = "what is also in a held-out split is rejected, kept, or an error (default: %(default)s)"
_REASON = "also_in_"
# Counts leaks, rejected or kept, whose held-out copy has another label.
OTHER_LABEL = "other_label_held_out"


class Shared(NamedTuple):
    """How many rows (or what `unit` says) of a split are also in a held-out one."""

    number: int
    unit: str
    split: str
    held_out: str

    def __str__(self) -> str:
        are = "is" if self.number == 1 else "are"
        return (
            f"{counted(self.number, self.unit)} of {self.split} that {are} also in {self.held_out}"
        )


def reason(held_out: str) -> str:
    """The reason of leaks in ledgers and lists of rejects."""
    return f"{_REASON}{held_out}"


def reasons(ledger: Ledger) -> set[str]:
    """The reasons of a ledger that are leaks, which no error of the data is."""
    return {name for name in ledger.rejected if name.startswith(_REASON)}


def line(shared: Shared, on_leak: str) -> str:
    """What the end of a run says of leaks: the same in every lane."""
    return f"{shared}: {'kept' if on_leak == KEEP else 'rejected'}"


def rejected(ledger: Ledger) -> list[Shared]:
    """The leaks that a ledger has rejected."""
    return _shared(ledger, ledger.rejected)


def lines(ledger: Ledger) -> list[str]:
    """The lines of the leaks that a ledger counts: rejected, or kept with a warning."""
    result = [line(leak, REJECT) for leak in rejected(ledger)]
    result += [line(leak, KEEP) for leak in _shared(ledger, ledger.warnings)]
    if others := ledger.warnings.get(OTHER_LABEL, 0):
        result.append(f"{counted(others, ledger.unit)} of these with another label where held out")
    return result


def lines_of(path: str | os.PathLike) -> list[str]:
    """The lines of the ledger in a file; none where there is no such file."""
    content = jsonl.read_or({}, path)
    if content:
        return lines(Ledger.from_dict(content))
    return []


def _shared(ledger: Ledger, counts: Mapping[str, int]) -> list[Shared]:
    return [
        Shared(count, ledger.unit, ledger.scope, name.removeprefix(_REASON))
        for name, count in sorted(counts.items())
        if name.startswith(_REASON) and count
    ]


def error(
    shared: Sequence[Shared], first: str, where: str | os.PathLike, key: str
) -> MillraceError:
    """The error of leaks; `first` names one of them, `key` is that of the config."""
    problem = f"{' and '.join(map(str, shared))}, the first: {first}"
    remedy = f"Mend the splits, or set {key} to reject (they leave {shared[0].split}) or to keep"
    return MillraceError(problem, os.fspath(where), remedy)
