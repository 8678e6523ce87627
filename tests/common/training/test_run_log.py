"""The log of a run, as the next start reads it."""

from __future__ import annotations

from pathlib import Path

import pytest

from millrace.common.errors import MillraceError
from millrace.common.training.run_log import RunLog, known
from tests.common.test_atomic import disk_calls


def test_lines_are_on_disk_when_a_checkpoint_is_to_be_saved(tmp_path: Path, monkeypatch):
    calls = disk_calls(monkeypatch)
    with RunLog(tmp_path, 0, -1, ids=True, tensorboard=False) as log:
        log.sync()
    names = ("metrics.jsonl", "sample_ids.0.jsonl")
    assert calls == [("fsync", str(tmp_path / name)) for name in names]


def test_a_damaged_line_is_named(tmp_path: Path):
    log = tmp_path / "metrics.jsonl"
    log.write_text('{"event": "train", "loss": 0.5}\n{"event": \n')
    with pytest.raises(MillraceError, match="line 2 is damaged"):
        known(log)
    log.write_text('{"event": "train", "loss": 0.5}\n')
    assert known(log) == (0.5, {})
