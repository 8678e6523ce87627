"""What of a partition is there, and what is compared of it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from millrace.common.workflow.differences import Items, compare, keep, restore_times


def test_a_partition_of_which_any_output_is_left_has_output(tmp_path: Path):
    outputs = [f"{tmp_path}/{{}}/manifest", f"{tmp_path}/{{}}/index"]
    items = Items("recording", dict, lambda *_: [], outputs)
    assert not items.has_output("a")
    (tmp_path / "a").mkdir()
    (tmp_path / "a/index").touch()
    assert items.has_output("a")


@pytest.mark.parametrize(
    "total, is_built, phrases",
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


def test_a_copy_whose_parse_was_killed_has_no_name(tmp_path: Path, monkeypatch):
    def cut(_: Path, target: Path) -> None:
        target.write_text("{")
        raise KeyboardInterrupt

    monkeypatch.setattr(shutil, "copy2", cut)
    (tmp_path / "a.json").write_text("{}")
    items = Items("recording", dict, lambda *_: [], [f"{tmp_path}/{{}}.json"])
    with pytest.raises(KeyboardInterrupt):
        keep(tmp_path, items)
    assert not (tmp_path / "built/a.json").exists()
    # What a dead process left goes with the next parse.
    monkeypatch.undo()
    for path in (tmp_path / "built").iterdir():
        path.rename(str(path).replace(str(os.getpid()), "99999999"))
    keep(tmp_path, items)
    assert os.listdir(tmp_path / "built") == ["a.json"]


# The later one is that of a folder which was copied without its times.
@pytest.mark.parametrize("built, given", [(1_000, 1_000), (3_000, 2_000)])
def test_a_partition_file_gets_its_time_of_then_and_never_a_later_one(tmp_path, built, given):
    copy = tmp_path / "built/a.json"
    copy.parent.mkdir()
    for path, seconds in ((tmp_path / "a.json", 2_000), (copy, built)):
        path.write_text("{}")
        os.utime(path, (seconds, seconds))
    restore_times(tmp_path, Items("recording", dict, lambda *_: [], [f"{tmp_path}/{{}}.json"]))
    assert (tmp_path / "a.json").stat().st_mtime == given
