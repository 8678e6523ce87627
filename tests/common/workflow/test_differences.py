"""What of a partition is there, and what is compared of it."""

from __future__ import annotations

from pathlib import Path

from millrace.common.workflow.differences import Items


def test_a_partition_of_which_any_output_is_left_has_output(tmp_path: Path):
    outputs = [f"{tmp_path}/{{}}/manifest", f"{tmp_path}/{{}}/index"]
    items = Items("recording", dict, lambda *_: [], outputs)
    assert not items.has_output("a")
    (tmp_path / "a").mkdir()
    (tmp_path / "a/index").touch()
    assert items.has_output("a")
