"""What of a partition is there, and what is compared of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from millrace.common.workflow.differences import Items, compare


def test_a_partition_of_which_any_output_is_left_has_output(tmp_path: Path):
    outputs = [f"{tmp_path}/{{}}/manifest", f"{tmp_path}/{{}}/index"]
    items = Items("recording", dict, lambda *_: [], outputs)
    assert not items.has_output("a")
    (tmp_path / "a").mkdir()
    (tmp_path / "a/index").touch()
    assert items.has_output("a")


@pytest.mark.parametrize(
    ("total", "is_built", "phrases"),
    [
        (1, False, ["1 recording new"]),
        # An earlier version took no copies.
        (1, True, []),
        (0, False, []),
    ],
)
def test_all_is_new_where_nothing_was_built_before(tmp_path: Path, total, is_built, phrases):
    output = tmp_path / "index-a"
    if is_built:
        output.touch()
    (tmp_path / "a.json").write_text("{}")
    items = Items("recording", dict, lambda *_: [], [f"{tmp_path}/index-{{}}"])
    assert compare(tmp_path, ["a"], total, items, left_out=[]).phrases == phrases


def test_an_item_of_which_no_part_is_known_to_differ_has_other_content(tmp_path: Path):
    (tmp_path / "built").mkdir()
    (tmp_path / "built/a.json").write_text('{"x": 1}')
    (tmp_path / "a.json").write_text('{"x": 20}')
    items = Items("recording", dict, lambda *_: [], [f"{tmp_path}/{{}}"])
    changes = compare(tmp_path, ["a"], 1, items, left_out=[])
    assert changes.phrases == ["1 recording changed (x: content), 0 new, 0 gone"]
