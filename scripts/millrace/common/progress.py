"""The line in which a long step says how far it is, and its reading by `millrace status`."""

from __future__ import annotations

import re
from typing import NamedTuple

_LINE = re.compile(r"(\d[\d.]* of \d[\d.]* \S+) \((\d+) %\).*")


class Position(NamedTuple):
    """How far a step is: in words, such as `120 of 600 steps`, and as a share of the whole."""

    text: str
    share: float


def line(done: float, total: float, unit: str, seconds_left: float | None, *details: str) -> str:
    """Such as `120 of 600 steps (20 %), 0:03:12 left, loss 3.2100`; no time where none can be
    foreseen."""
    share = 100 * done / total if total else 100.0
    counts = [f"{number:.2f}".removesuffix(".00") for number in (done, total)]
    left = [] if seconds_left is None else [f"{clock(seconds_left)} left"]
    return ", ".join([f"{counts[0]} of {counts[1]} {unit} ({share:.0f} %)", *left, *details])


def clock(seconds: float) -> str:
    """Hours, minutes and seconds, such as `0:03:12` or `120:00:00`."""
    minutes, seconds = divmod(max(round(seconds), 0), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{seconds:02}"


def parse(text: str) -> str:
    """What `line` made, without what a log has before it; "" if the text is about something
    else."""
    match = _LINE.search(text)
    return match[0] if match else ""


def position(text: str) -> Position | None:
    """How far a step is, by a line that `line` made; None if the text is about something else."""
    match = _LINE.search(text)
    return Position(match[1], int(match[2]) / 100) if match else None
