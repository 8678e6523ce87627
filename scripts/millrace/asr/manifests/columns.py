"""Columns of any type, made into text and seconds, with a reason for every row where that fails."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

TEXT = pa.large_string()
# Codes of `problem`; 0 means none so far. The names are the reasons of the ledger.
REASONS = (
    "",
    "json_damaged",
    "json_encoding",
    "not_an_object",
    "no_tar_path",
    "no_member_name",
    "segment_of_member",
    "text_not_utf8",
    "text_is_nested",
    "empty_transcript",
    "duration_missing",
    "duration_not_numeric",
    "duration_nan",
    "duration_infinite",
    "duration_not_positive",
    "duration_implausible",
    "longer_than_last_edge",
    "tar_not_indexed",
    "not_in_tar",
    "not_a_file",
    "empty_member",
    "duplicate_row",
)
CODE = {reason: code for code, reason in enumerate(REASONS)}
# What is outside of a millisecond to eleven days is a wrong unit, not a clip; planning could not tell the
# least from 0.
SHORTEST_SECONDS, LONGEST_SECONDS = 1e-3, 1e6


def note(problem: np.ndarray, mask: np.ndarray, reason: str) -> None:
    """Set the reason of the rows in `mask` that have none yet: the first problem found is the one that is
    reported."""
    problem[mask & (problem == 0)] = CODE[reason]


def text(column: pa.Array, problem: np.ndarray) -> pa.Array:
    """`column` as large_string: numbers become text, NaN null.

    Lists and structs, and bytes that are not UTF-8, are noted and become null.
    """
    kind = column.type
    if pa.types.is_dictionary(kind):
        return text(column.dictionary_decode(), problem)
    if pa.types.is_null(kind):
        return pa.nulls(len(column), TEXT)
    if pa.types.is_floating(kind):
        return pc.if_else(pc.is_nan(column.cast(pa.float64())), None, column).cast(TEXT)
    if pa.types.is_nested(kind):
        note(problem, column.is_valid().to_numpy(zero_copy_only=False), "text_is_nested")
        return pa.nulls(len(column), TEXT)
    if not (_is_text(kind) or _is_bytes(kind)):
        return column.cast(TEXT)
    try:
        result = column.cast(TEXT)
        result.validate(full=True)
        return result
    except (pa.ArrowInvalid, UnicodeDecodeError):
        return _decoded(column.cast(pa.large_binary()), problem)


def _decoded(column: pa.Array, problem: np.ndarray) -> pa.Array:
    values, broken = [], np.zeros(len(column), dtype=bool)
    for at, raw in enumerate(column.to_pylist()):
        try:
            values.append(None if raw is None else raw.decode("utf-8"))
        except UnicodeDecodeError:
            values.append(None)
            broken[at] = True
    note(problem, broken, "text_not_utf8")
    return pa.array(values, TEXT)


def seconds(column: pa.Array, problem: np.ndarray) -> np.ndarray:
    """`column` as float64 seconds; NaN where it is no positive, finite, plausible number, and the reason
    noted."""
    values, missing, unreadable = _numbers(column)
    note(problem, missing, "duration_missing")
    note(problem, unreadable, "duration_not_numeric")
    note(problem, np.isnan(values), "duration_nan")
    note(problem, np.isinf(values), "duration_infinite")
    with np.errstate(invalid="ignore"):
        note(problem, values <= 0, "duration_not_positive")
        note(problem, (values < SHORTEST_SECONDS) | (values > LONGEST_SECONDS), "duration_implausible")
    return values


def _numbers(column: pa.Array) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    kind, nothing = column.type, np.zeros(len(column), dtype=bool)
    if pa.types.is_dictionary(kind):
        return _numbers(column.dictionary_decode())
    missing = column.is_null().to_numpy(zero_copy_only=False)
    if pa.types.is_floating(kind) or pa.types.is_integer(kind):
        values = column.cast(pa.float64(), safe=False)
    elif pa.types.is_decimal(kind):
        values = column.cast(pa.string()).cast(
            pa.float64()
        )  # by way of text: the direct cast is off in the last digit
    elif pa.types.is_duration(kind):
        values = pc.divide(
            column.cast(pa.duration("ns"), safe=False).cast(pa.int64()).cast(pa.float64(), safe=False), 1e9
        )
    elif _is_text(kind) or _is_bytes(kind):
        values = np.array([_number(value) for value in column.to_pylist()], dtype=np.float64)
        # A text that says "nan" is a NaN; what float() refuses is no number.
        unreadable = np.array(
            [_number(value, bad=math.inf) == math.inf for value in column.to_pylist()], dtype=bool
        )
        return values, missing, unreadable & ~missing & ~np.isinf(values)
    else:
        return np.full(len(column), np.nan), missing, ~missing
    return pc.fill_null(values, math.nan).to_numpy(zero_copy_only=False).copy(), missing, nothing


def _number(value: str | bytes | None, bad: float = math.nan) -> float:
    try:
        return float(value) if value is not None else math.nan
    except ValueError:
        return bad


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)


def _is_bytes(kind: pa.DataType) -> bool:
    return (
        pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_fixed_size_binary(kind)
        or (pa.types.is_binary_view(kind))
    )


def bare_names(names: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Member names without their `./` prefix; `.hidden` stays `.hidden`."""
    dotted = pc.starts_with(names, "./")
    if not pc.any(dotted, skip_nulls=True).as_py():
        return names
    return pc.replace_substring_regex(names, r"^(\./+)+", "")
