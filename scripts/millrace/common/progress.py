"""The line in which a long step says how far it is, and its reading by `millrace status`."""

from __future__ import annotations

import re
from typing import NamedTuple

_LINE = re.compile(r"(\d[\d.]* of \d[\d.]* \S+) \((\d+) %\).*")


class Position(NamedTuple):
    """How far a step is."""

    line: str  # what it says of it, without what a log has before
    text: str  # such as `120 of 600 steps`
    share: float  # of the whole, 0 to 1


def line(done: float, total: float, unit: str, seconds_left: float | None, *details: str) -> str:
    """Such as `120 of 600 steps (20 %), 0:03:12 left, loss 3.2100`; no time where none can be
    foreseen."""
    share = 100 * done / total if total else 100.0
    parts = [f"{_short(done)} of {_short(total)} {unit} ({share:.0f} %)"]
    if seconds_left is not None:
        parts.append(f"{clock(seconds_left)} left")
    return ", ".join([*parts, *details])


def _short(number: float) -> str:
    """At most two digits behind the point; none of a whole number."""
    return f"{number:.2f}".removesuffix(".00")


def clock(seconds: float) -> str:
    """Hours, minutes and seconds, such as `0:03:12` or `120:00:00`."""
    whole = max(round(seconds), 0)
    minutes, seconds = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}"


def position(text: str) -> Position | None:
    """How far a step is, by a line that `line` made; None if the text is about something else."""
    match = _LINE.search(text)
    if match:
        return Position(match[0], match[1], int(match[2]) / 100)
    return None
