"""The row schema of the ASR lane's manifests, with the reason of every row that shows in the row itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace.asr.manifests import columns as mc


def checked(columns: dict[str, Any], problem: np.ndarray, row: np.ndarray) -> pa.Table:
    """A table of tar, tar_member_name, transcript, language, duration_s, row, problem out of raw columns."""
    members, language = mc.bare_names(columns["tar_member_name"]), columns["language"]
    mc.note(problem, columns["tar"] < 0, "no_tar_path")
    mc.note(
        problem, pc.fill_null(pc.equal(members, ""), True).to_numpy(zero_copy_only=False), "no_member_name"
    )
    mc.note(problem, _invisible(columns["transcript"]), "empty_transcript")
    durations = mc.seconds(columns["duration_s"], problem)
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


def _invisible(texts: pa.Array) -> np.ndarray:
    """Whether a text is blank, or has nothing but control characters and zero-width marks."""
    invisible = _blank(texts)
    # Such texts are short; a closer look at all would cost more than the rest of the checks.
    length = pc.fill_null(pc.binary_length(texts), 0).to_numpy(zero_copy_only=False)
    short = np.flatnonzero(~invisible & (length <= 16))
    if len(short):
        visible = pc.match_substring_regex(texts.take(pa.array(short)), r"[^\p{Z}\p{C}]")
        invisible[short] = ~visible.to_numpy(zero_copy_only=False)
    return invisible
