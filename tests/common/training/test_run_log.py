"""The log of a run, as the next start reads it."""

from __future__ import annotations

from pathlib import Path

from millrace.common.training.run_log import RunLog
from millrace.common.training.settings import LoopSettings
from tests.common.test_atomic import disk_calls


def test_lines_are_on_disk_when_a_checkpoint_is_to_be_saved(tmp_path: Path, monkeypatch):
    calls = disk_calls(monkeypatch)
    with RunLog(tmp_path, 0, -1, LoopSettings(log_ids=1, tensorboard=0)) as log:
        log.sync()
    names = ("metrics.jsonl", "sample_ids.0.jsonl")
    assert calls == [("fsync", str(tmp_path / name)) for name in names]
    assert sorted(tmp_path.iterdir()) == [tmp_path / name for name in names]
