"""Arguments of functions that users call: what they may be, and what to give instead."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from numbers import Real
from typing import Any

from millrace.common.errors import MillraceError


def whole(name: str, value: Any, least: int | None = None) -> int:
    """A whole number of any type, as an int: those of numpy are in no JSON, nor in a seed.

    Raises MillraceError, also below `least`.
    """
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or (least is not None and number < least):
        bound = "" if least is None else f" from {least}"
        raise MillraceError(f"{name} is {value!r}", remedy=f"Give a whole number{bound}")
    return number


def above_zero(name: str, value: Any) -> float:
    """A number above 0. Raises MillraceError."""
    if not (isinstance(value, Real) and float(value) > 0):  # NaN is above nothing
        raise MillraceError(f"{name} is {value!r}", remedy="Give a number above 0")
    return float(value)


def several(name: str, values: Any) -> Iterable[Any]:
    """A list, or another iterable. Raises MillraceError for one text, and for what is none."""
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise MillraceError(f"{name} is {values!r}", remedy="Give a list")
    return values
