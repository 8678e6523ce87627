"""The line of a long step, and its reading."""

from __future__ import annotations

import pytest

from millrace.common import progress


@pytest.mark.parametrize(
    "values, line",
    [
        (
            (120, 600, "steps", 192.4, "loss 3.2100", "35.2 samples/s"),
            "120 of 600 steps (20 %), 0:03:12 left, loss 3.2100, 35.2 samples/s",
        ),
        ((0.05, 0.13, "h", 90000, "errors 2"), "0.05 of 0.13 h (38 %), 25:00:00 left, errors 2"),
        (
            (3, 9, "trials", None, "64 rows: out of memory"),
            "3 of 9 trials (33 %), 64 rows: out of memory",
        ),
        ((0, 0, "rows", None), "0 of 0 rows (100 %)"),
        ((7, 5, "rows", -3), "7 of 5 rows (140 %), 0:00:00 left"),
    ],
)
def test_what_a_step_logs_is_what_the_status_reads(values, line):
    assert progress.line(*values) == line
    logged = f"23:59:01 INFO malta-train-1-00000: {line}"
    position = progress.position(logged)
    assert position is not None and position.line == line
    assert line.startswith(f"{position.text} ({100 * position.share:.0f} %)")


@pytest.mark.parametrize("text", ["", "3 of 7 tars are missing", "20 of 70 rows (tar_missing 20)"])
def test_other_lines_are_no_progress(text):
    assert progress.position(text) is None
