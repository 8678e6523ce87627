"""Arguments of functions that users call: what they may be, and what to give instead."""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Callable, Iterable
from numbers import Real
from typing import Any

from millrace.common.errors import MillraceError


def whole(name: str, value: Any, least: int | None = None) -> int:
    """A whole number of any type, as an int: those of numpy are in no JSON, nor in a seed.

    Raises MillraceError, also below `least`.
    """
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None or (least is not None and number < least):
        bound = "" if least is None else f" from {least}"
        raise MillraceError(f"{name} is {value!r}", remedy=f"Give a whole number{bound}")
    return number


def above_zero(name: str, value: Any) -> float:
    """A number above 0. Raises MillraceError."""
    number = _number(value)
    if not number > 0:
        raise MillraceError(f"{name} is {value!r}", remedy="Give a number above 0")
    return number


def share(name: str, value: Any) -> float:
    """A part of the whole. Raises MillraceError."""
    number = _number(value)
    if not 0 <= number <= 1:
        raise MillraceError(f"{name} is {value!r}", remedy="Give a number from 0 to 1")
    return number


def _number(value: Any) -> float:
    """NaN, which is in no range, for what is no number."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return math.nan
    return float(value)


def function(name: str, value: Any) -> Callable | None:
    """A function, or None. Raises MillraceError."""
    if value is not None and not callable(value):
        raise MillraceError(f"{name} is {value!r}", remedy="Give a function")
    return value


def path_of(name: str, value: Any) -> str:
    """A path as text. Raises MillraceError, also for bytes."""
    text = os.fspath(value) if isinstance(value, str | os.PathLike) else None
    if not isinstance(text, str):
        raise MillraceError(f"{name} is {value!r}", remedy="Give a path: text, or a Path")
    return text


def several(name: str, values: Any) -> Iterable[Any]:
    """A list, or another iterable. Raises MillraceError for one text, and for what is none."""
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise MillraceError(f"{name} is {values!r}", remedy="Give a list")
    return values
