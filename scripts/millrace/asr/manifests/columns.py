"""What a row of a manifest must hold, in whatever file: plausible seconds, a text that can be seen,
a member's name; and the reason of every bad row."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace.asr.manifests.identity import bare_names
from millrace.common.errors import MillraceError
from millrace.common.leaks import leakage

# What all columns are cast to.
TEXT = pa.large_string()
SECONDS = pa.float64()
# Codes of `problem`; 0 means none so far. The names are the reasons of the ledger.
REASONS = (
    "",
    "json_damaged",
    "json_encoding",
    "not_an_object",
    "no_tar_path",
    "no_member_name",
    "skipme",
    "segment_of_member",
    "text_not_utf8",
    "not_a_text",
    "empty_transcript",
    "duration_missing",
    "duration_not_numeric",
    "duration_nan",
    "duration_infinite",
    "duration_not_positive",
    "duration_implausible",
    "longer_than_last_edge",
    "tar_missing",
    "tar_not_indexed",
    "not_in_tar",
    "not_a_file",
    "empty_member",
    "duplicate_row",
    "contradicting_row",
    *map(leakage.reason, ("test", "dev")),
)
CODE = {reason: code for code, reason in enumerate(REASONS)}
# Types of columns; null is that of a column without any value.
_IS_NUMBER = (pa.types.is_integer, pa.types.is_floating, pa.types.is_null)
_IS_TEXT = (
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_string_view,  # as Polars and DataFusion hand tables over
    pa.types.is_null,
)
# Outside of these (a millisecond to eleven days) it is a wrong unit; planning cannot tell the least
# from 0.
SHORTEST_SECONDS = 1e-3
LONGEST_SECONDS = 1e6


def check_type(column: pa.Field, is_number: bool, path: Path) -> None:
    """Raise MillraceError, with file and column, if a column does not hold numbers, or texts."""
    kind = column.type
    if pa.types.is_dictionary(kind) and not is_number:
        kind = kind.value_type  # as pandas has categories
    noun = "number" if is_number else "text"
    fitting = _IS_NUMBER if is_number else _IS_TEXT
    if not any(fits(kind) for fits in fitting):
        problem = f"the column {column.name} is {kind}, which is no {noun}"
        raise MillraceError(problem, str(path), f"Write one {noun} a row; a duration in seconds")


def note(problem: np.ndarray, mask: np.ndarray | pa.Array | list[bool], reason: str) -> None:
    """Set the reason of the rows in `mask` that have none yet: the first problem is reported."""
    problem[np.asarray(mask) & (problem == 0)] = CODE[reason]


def text(column: pa.Array, problem: np.ndarray | None = None) -> pa.Array:
    """`column` as TEXT; bytes that are not UTF-8 are noted and become null."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    try:
        result = column.cast(TEXT)
        result.validate(full=True)  # a column that is declared as text need not be UTF-8
        return result
    except (pa.ArrowInvalid, UnicodeDecodeError):
        raws = column.cast(pa.large_binary()).to_pylist()
        decoded = [_decoded(raw) for raw in raws]
    result = pa.array(decoded, TEXT)
    if problem is not None:
        note(problem, pc.and_not(result.is_null(), column.is_null()), "text_not_utf8")
    return result


def _decoded(raw: bytes | None) -> str | None:
    try:
        return None if raw is None else raw.decode("utf-8")
    except UnicodeDecodeError:
        return None


def seconds(column: pa.Array, problem: np.ndarray) -> np.ndarray:
    """`column`, of numbers, as float64 seconds; what is no positive, finite, plausible number gets
    its reason noted."""
    note(problem, column.is_null(), "duration_missing")
    cast = column.cast(SECONDS, safe=False)
    values = np.array(pc.fill_null(cast, math.nan))
    note(problem, np.isnan(values), "duration_nan")
    note(problem, np.isinf(values), "duration_infinite")
    with np.errstate(invalid="ignore"):
        is_implausible = (values < SHORTEST_SECONDS) | (values > LONGEST_SECONDS)
        note(problem, values <= 0, "duration_not_positive")
    note(problem, is_implausible, "duration_implausible")
    return values


def checked(columns: dict[str, Any], problem: np.ndarray, row: np.ndarray) -> pa.Table:
    """A table of tar, tar_member_name, transcript, language, duration_s, (prompt,) row, problem.

    `columns` are all but the last two: `tar` numbers (-1: none), TEXT, and durations.
    """
    members = bare_names(columns["tar_member_name"])
    language = columns["language"]
    note(problem, columns["tar"] < 0, "no_tar_path")
    note(problem, pc.fill_null(pc.equal(members, ""), True), "no_member_name")
    note(problem, _invisible(columns["transcript"]), "empty_transcript")
    durations = seconds(columns["duration_s"], problem)
    language = pc.if_else(pa.array(_blank(language)), None, language)
    values = {
        **columns,
        "tar_member_name": members,
        "language": language,
        "duration_s": durations,
        "row": row,
        "problem": problem,
    }
    return pa.table(values)


def _blank(texts: pa.Array) -> np.ndarray:
    """Whether a text is null, empty or nothing but white space."""
    is_empty = pc.equal(pc.binary_length(texts), 0)
    blank = pc.or_(pc.utf8_is_space(texts), is_empty)
    return np.array(pc.fill_null(blank, True))


def _invisible(texts: pa.Array) -> np.ndarray:
    """Whether a text is blank, or has nothing but control characters and zero-width marks."""
    invisible = _blank(texts)
    # Such texts are short; a closer look at all would cost more than the rest of the checks.
    length = np.asarray(pc.fill_null(pc.binary_length(texts), 0))
    short = np.flatnonzero(~invisible & (length <= 16))
    is_seen = pc.match_substring_regex(texts.take(short), r"[^\p{Z}\p{C}]")
    invisible[short] = ~np.asarray(is_seen)
    return invisible
