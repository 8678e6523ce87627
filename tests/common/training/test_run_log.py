"""The log of a run, as the next start reads it."""

from __future__ import annotations

from pathlib import Path

import pytest

from millrace.common.errors import MillraceError
from millrace.common.training.run_log import known


def test_a_damaged_line_is_named(tmp_path: Path):
    log = tmp_path / "metrics.jsonl"
    log.write_text('{"event": "train", "loss": 0.5}\n{"event": \n')
    with pytest.raises(MillraceError, match="line 2 is damaged"):
        known(log)
    log.write_text('{"event": "train", "loss": 0.5}\n')
    assert known(log) == (0.5, {})
