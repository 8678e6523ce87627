"""The row schema of manifests: columns of any type as text and seconds, and the reason of every bad
row."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace.asr.manifests.identity import bare_names
from millrace.common.errors import MillraceError

# What all columns are cast to.
TEXT, SECONDS = pa.large_string(), pa.float64()
# Codes of `problem`; 0 means none so far. The names are the reasons of the ledger.
REASONS = (
    "",
    *(
        "json_damaged",
        "json_encoding",
        "not_an_object",
        "no_tar_path",
        "no_member_name",
        "segment_of_member",
    ),
    *("text_not_utf8", "text_is_nested", "empty_transcript"),
    *("duration_missing", "duration_not_numeric", "duration_nan", "duration_infinite"),
    *("duration_not_positive", "duration_implausible", "longer_than_last_edge"),
    *("tar_missing", "tar_not_indexed", "not_in_tar", "not_a_file", "empty_member"),
    *("duplicate_row", "contradicting_row"),
)
CODE = {reason: code for code, reason in enumerate(REASONS)}
# Outside of these (a millisecond to eleven days) it is a wrong unit; planning cannot tell the least
# from 0.
SHORTEST_SECONDS, LONGEST_SECONDS = 1e-3, 1e6


def check_type(column: pa.Field, wanted: pa.DataType, path: Path) -> None:
    """Raise MillraceError, with file and column, if a column of this type can never become
    `wanted`."""
    types, noun, remedy = pa.types, "text", "Write one text a row"
    kind = column.type.value_type if types.is_dictionary(column.type) else column.type
    bad = types.is_nested(kind)
    if wanted == SECONDS:
        bad |= types.is_boolean(kind) or (types.is_temporal(kind) and not types.is_duration(kind))
        noun, remedy = "number of seconds", "Write seconds, as a number"
    if bad:
        raise MillraceError(
            f"the column {column.name} is {kind}, which is no {noun}", str(path), remedy
        )


def note(problem: np.ndarray, mask: np.ndarray | pa.Array | list[bool], reason: str) -> None:
    """Set the reason of the rows in `mask` that have none yet: the first problem is reported."""
    problem[np.asarray(mask) & (problem == 0)] = CODE[reason]


def text(column: pa.Array, problem: np.ndarray | None = None) -> pa.Array:
    """`column` as TEXT: numbers become text, NaN null; bytes that are not UTF-8 are noted and
    become null."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_floating(column.type):
        column = pc.if_else(pc.is_nan(column.cast(SECONDS)), None, column)
    try:
        result = column.cast(TEXT)
        result.validate(full=True)  # a column that is declared as text need not be UTF-8
        return result
    except (pa.ArrowInvalid, UnicodeDecodeError):
        result = pa.array(
            [_decoded(raw) for raw in column.cast(pa.large_binary()).to_pylist()], TEXT
        )
    if problem is not None:
        note(problem, pc.and_not(result.is_null(), column.is_null()), "text_not_utf8")
    return result


def _decoded(raw: bytes | None) -> str | None:
    try:
        return None if raw is None else raw.decode("utf-8")
    except UnicodeDecodeError:
        return None


def seconds(column: pa.Array, problem: np.ndarray) -> np.ndarray:
    """`column` as float64 seconds; what is no positive, finite, plausible number gets its reason
    noted."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    kind, missing = column.type, np.asarray(column.is_null())
    note(problem, missing, "duration_missing")
    if pa.types.is_decimal(kind):
        column = column.cast(pa.string()).cast(SECONDS)  # the direct cast is off in the last digit
    elif pa.types.is_duration(kind):
        nanoseconds = column.cast(pa.duration("ns"), safe=False).cast(pa.int64())
        column = pc.divide(nanoseconds.cast(SECONDS, safe=False), 1e9)
    elif not pa.types.is_primitive(kind) and not pa.types.is_null(kind):  # texts and bytes
        column = pa.array([number(value) for value in column.to_pylist()], SECONDS)
        note(problem, ~missing & np.asarray(column.is_null()), "duration_not_numeric")
    values = np.array(pc.fill_null(column.cast(SECONDS, safe=False), math.nan))
    note(problem, np.isnan(values), "duration_nan")
    note(problem, np.isinf(values), "duration_infinite")
    with np.errstate(invalid="ignore"):
        note(problem, values <= 0, "duration_not_positive")
        note(
            problem,
            (values < SHORTEST_SECONDS) | (values > LONGEST_SECONDS),
            "duration_implausible",
        )
    return values


def number(value: Any) -> float | None:
    """A number, or what a text or bytes say as one (`nan` and `inf` too); None for all else."""
    try:
        return None if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        return None


def checked(columns: dict[str, Any], problem: np.ndarray, row: np.ndarray) -> pa.Table:
    """A table of tar, tar_member_name, transcript, language, duration_s, (prompt,) row, problem.

    `columns` are all but the last two: `tar` numbers (-1: none), TEXT, and durations of any type.
    """
    members, language = bare_names(columns["tar_member_name"]), columns["language"]
    note(problem, columns["tar"] < 0, "no_tar_path")
    note(problem, pc.fill_null(pc.equal(members, ""), True), "no_member_name")
    note(problem, _invisible(columns["transcript"]), "empty_transcript")
    durations = seconds(columns["duration_s"], problem)
    language = pc.if_else(pa.array(_blank(language)), None, language)
    values = {"tar_member_name": members, "language": language, "duration_s": durations}
    return pa.table({**columns, **values, "row": row, "problem": problem})


def _blank(texts: pa.Array) -> np.ndarray:
    """Whether a text is null, empty or nothing but white space."""
    blank = pc.or_(pc.utf8_is_space(texts), pc.equal(pc.binary_length(texts), 0))
    return np.array(pc.fill_null(blank, True))


def _invisible(texts: pa.Array) -> np.ndarray:
    """Whether a text is blank, or has nothing but control characters and zero-width marks."""
    invisible = _blank(texts)
    # Such texts are short; a closer look at all would cost more than the rest of the checks.
    length = np.asarray(pc.fill_null(pc.binary_length(texts), 0))
    short = np.flatnonzero(~invisible & (length <= 16))
    invisible[short] = ~np.asarray(pc.match_substring_regex(texts.take(short), r"[^\p{Z}\p{C}]"))
    return invisible
