"""The row schema of the ASR lane's manifests, with the reason of every row that shows in the row itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace.asr.manifests import columns as mc


def checked(columns: dict[str, Any], problem: np.ndarray, row: np.ndarray) -> pa.Table:
    """A table of tar, tar_member_name, transcript, language, duration_s, row, problem out of raw columns."""
    note, members = mc.note, mc.bare_names(columns["tar_member_name"])
    note(problem, columns["tar"] < 0, "no_tar_path")
    note(problem, pc.fill_null(pc.equal(members, ""), True).to_numpy(zero_copy_only=False), "no_member_name")
    note(problem, _unseen(columns["transcript"]), "empty_transcript")
    durations = mc.seconds(columns["duration_s"], problem)
    language = columns["language"]
    blank = _blank(language)
    if blank.sum() > language.null_count:
        language = pc.if_else(pa.array(blank), None, language)
    return pa.table(
        {
            "tar": columns["tar"],
            "tar_member_name": members,
            "transcript": columns["transcript"],
            "language": language,
            "duration_s": durations,
            "row": row,
            "problem": problem,
        }
    )


def _blank(texts: pa.Array) -> np.ndarray:
    """Whether a text is null, empty or nothing but white space."""
    blank = pc.or_(pc.utf8_is_space(texts), pc.equal(pc.binary_length(texts), 0))
    return pc.fill_null(blank, True).to_numpy(zero_copy_only=False)


def _unseen(texts: pa.Array) -> np.ndarray:
    """Whether a text is blank, or has nothing but control characters and zero-width marks."""
    unseen = _blank(texts)
    # Such texts are short; a closer look at all would cost more than the rest of the checks.
    length = pc.fill_null(pc.binary_length(texts), 0).to_numpy(zero_copy_only=False)
    short = np.flatnonzero(~unseen & (length <= 16))
    if len(short):
        seen = pc.match_substring_regex(texts.take(pa.array(short)), r"[^\p{Z}\p{C}]")
        unseen[short] = ~seen.to_numpy(zero_copy_only=False)
    return unseen


def from_objects(rows: list[dict], code: dict[str, int], file: int) -> pa.Table:
    """The same out of JSON objects with the keys of `checked`, but `tar_path` (numbered by `code`) and
    `line`."""
    problem = np.array([row["problem"] for row in rows], dtype=np.uint8)
    result: dict[str, Any] = {
        "tar": np.array([code.get(row["tar_path"], -1) for row in rows], dtype=np.int32)
    }
    for name in ("tar_member_name", "transcript", "language"):
        values = [row[name] if isinstance(row[name], str | None) else str(row[name]) for row in rows]
        nested = np.array([isinstance(row[name], list | dict) for row in rows], dtype=bool)
        mc.note(problem, nested, "text_is_nested")
        try:
            result[name] = pa.array(values, mc.TEXT)
        except UnicodeEncodeError:  # a lone surrogate, as in "\ud800"
            values = [None if value is None else value.encode("utf-8", "surrogatepass") for value in values]
            result[name] = mc.text(pa.array(values, pa.large_binary()), problem)
    durations = [row["duration_s"] for row in rows]
    plain = [
        value if isinstance(value, int | float) and not isinstance(value, bool) else None
        for value in durations
    ]
    for at, (value, number) in enumerate(zip(durations, plain, strict=True)):
        if value is not None and number is None:
            try:
                plain[at] = float(value) if isinstance(value, str) else None
            except ValueError:
                plain[at] = None
            if plain[at] is None and problem[at] == 0:
                problem[at] = mc.CODE["duration_not_numeric"]
    result["duration_s"] = pa.array(
        [None if value is None else _float(value) for value in plain], pa.float64()
    )
    return checked(result, problem, (file << 40) + np.array([row["line"] for row in rows], dtype=np.int64))


def _float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:  # a whole number of more than 308 digits
        return float("inf")
