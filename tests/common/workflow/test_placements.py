"""Placements: a draft of the parse, for ever from the first job on that rests on them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from millrace.common.errors import MillraceError
from millrace.common.workflow import placements
from millrace.common.workflow.differences import Items
from millrace.common.workflow.partitions import Assignment
from millrace.common.workflow.sources import Found, Partitions, Sources, Write, load, sync
from tests.refusals import refused

OUTPUTS = ["results/jobs/{}/index", "results/jobs/{}/status"]
ITEMS = Items("recording", lambda content: content, lambda *_: [], OUTPUTS)


class Lane:
    """A lane of some names, in the current folder; what it finds has a `state`, as long as that is
    set."""

    def __init__(self) -> None:
        self.names = ["a", "b"]
        self.settings: dict[str, Any] = {"share": 0.5}
        self.state = ""
        self.folder, self.file = Path("results/partitions"), Path("kept/assignment.jsonl")

    def collect(self, *_: object) -> Found:
        return Found(self.build, state=self.state)

    def build(self, write: Write) -> Partitions:
        assignment = Assignment(self.file, 1.0)
        for name in self.names:
            assignment.place(name, "g", 1.0)
        contents = {f"p{assignment.get(name).number}": {name: self.settings} for name in self.names}
        for partition, content in contents.items():
            write(partition, content)
        groups = {"g": list(contents)}
        files = {"train": ["m.jsonl"]}
        settings = self.settings
        return Partitions(assignment, groups, files=files, settings=settings, placed="stay")

    def parse(self) -> Sources:
        return sync(self.collect, None, self.folder)

    def read(self, name: str = "p0") -> object:
        return placements.read_partition(self.folder / f"{name}.json")

    def rows(self) -> dict[str, int]:
        lines = self.file.read_text().splitlines() if self.file.exists() else []
        return {row["item"]: row["number"] for row in map(json.loads, lines)}


@pytest.fixture
def lane(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lane:
    monkeypatch.chdir(tmp_path)
    return Lane()


def test_placements_last_from_the_first_job_on_that_reads_a_partition(lane: Lane):
    for _ in range(2):
        lane.parse()
        assert not lane.file.exists()
    assert lane.read("p1") == {"b": {"share": 0.5}}
    assert lane.rows() == {"a": 0, "b": 1}
    assert (
        json.loads(placements.settings_file(Assignment(lane.file, 1.0)).read_text())
        == lane.settings
    )
    before = lane.file.stat()
    lane.read("p0")
    assert (lane.file.stat().st_ino, lane.file.stat().st_mtime_ns) == (
        before.st_ino,
        before.st_mtime_ns,
    )
    lane.parse()
    assert not (lane.folder / placements.DRAFT).exists()  # all is kept


def test_a_step_by_hand_keeps_them_in_whatever_folder_it_runs(
    lane: Lane, tmp_path: Path, monkeypatch
):
    lane.parse()
    monkeypatch.chdir(tmp_path.parent)
    placements.read_partition(tmp_path / lane.folder / "p0.json")
    monkeypatch.chdir(tmp_path)
    assert lane.rows() == {"a": 0, "b": 1}


def test_jobs_that_start_at_once_keep_the_same(lane: Lane):
    lane.parse()
    draft = (lane.folder / placements.DRAFT).read_bytes()
    lane.read()
    kept = lane.file.read_bytes()
    # As a second job finds it that had opened the draft before the first one deleted it.
    (lane.folder / placements.DRAFT).write_bytes(draft)
    lane.read()
    assert lane.file.read_bytes() == kept and not (lane.folder / placements.DRAFT).exists()


def test_what_a_dry_run_placed_and_is_gone_is_not_kept(lane: Lane):
    lane.parse()
    lane.read()
    lane.names.append("c")
    lane.parse()
    lane.names.remove("c")
    lane.parse()
    lane.read()
    assert lane.rows() == {"a": 0, "b": 1}


def test_new_settings_count_for_new_items_and_are_kept_with_the_next_job(lane: Lane):
    lane.parse()
    lane.read()
    lane.settings = {"share": {"train": 0.7}}
    lane.state = "as it was at the last parse"
    for _ in range(2):
        assert lane.parse().notes == ["share 0.5 -> train 0.7: stay"]
    draft = json.loads((lane.folder / placements.DRAFT).read_text())
    assert [Path(path).name for path in draft] == ["assignment.settings.json"]
    lane.read()
    assert lane.parse().notes == [] and lane.rows() == {"a": 0, "b": 1}


def test_settings_of_placements_that_were_deleted_count_for_nothing(lane: Lane):
    lane.parse()
    lane.read()
    lane.file.unlink()
    lane.settings = {"share": 0.7}
    assert lane.parse().notes == []


def test_an_index_of_an_earlier_version_counts_as_none(lane: Lane):
    lane.parse()
    (lane.folder / "index/partitions.json").write_text('{"groups": {"g": ["p0"]}}')
    assert load(lane.folder) == Sources()


def test_after_a_parse_that_found_all_as_it_was_the_settings_are_kept_too(lane: Lane):
    lane.state = "the same"
    first, again = lane.parse(), lane.parse()
    for sources in (first, again):
        assert (sources.files, sources.notes) == ({"train": ["m.jsonl"]}, [])
    assert again.partitions == first.partitions
    lane.read()
    assert lane.rows() == {"a": 0, "b": 1}
    assert json.loads(Path("kept/assignment.settings.json").read_text()) == {"share": 0.5}
    # The state of the last sync is no more: its notes may be of other settings.
    assert not (lane.folder / placements.STATE).exists()


def test_a_parse_that_broke_off_is_made_again(lane: Lane):
    def half(write: Write) -> Partitions:
        write("p0", {"a": "half"})
        raise OSError("the disk is full")

    def broken(*_: object) -> Found:
        return Found(half, state="other")

    lane.state = "the same"
    lane.parse()
    with pytest.raises(OSError, match="full"):
        sync(broken, None, lane.folder)
    lane.parse()
    assert lane.read() == {"a": {"share": 0.5}}


def test_a_draft_that_was_deleted_or_that_an_earlier_version_did_not_write_is_written(lane: Lane):
    lane.state = "the same"
    lane.parse()
    (lane.folder / placements.DRAFT).unlink()
    lane.parse()
    lane.read()
    assert lane.rows() == {"a": 0, "b": 1}


def test_a_file_that_was_changed_since_is_neither_overwritten_nor_used(lane: Lane):
    lane.parse()
    lane.file.parent.mkdir()
    lane.file.write_text('{"item": "b", "group": "g", "number": 0, "cost": 1.0}\n')
    before = lane.file.read_bytes()
    with refused(r"kept/assignment\.jsonl: the file was changed .* Run the workflow"):
        lane.read()
    assert lane.file.read_bytes() == before
    lane.parse()
    lane.read()
    assert lane.rows() == {"b": 0, "a": 1}
    lane.names.append("c")
    lane.parse()
    lane.file.unlink()
    with refused("the file was changed after"):
        lane.read()
    assert not lane.file.exists()


@pytest.mark.parametrize("result", ["results/jobs/p0/index", "results/jobs/gone/status"])
@pytest.mark.parametrize("content", [None, ""])
def test_results_without_the_file_they_rest_on_are_an_error(
    lane: Lane, content: str | None, result: str
):
    def check() -> None:
        placements.require_kept(Assignment(lane.file, 1.0), lane.folder, ITEMS)

    check()
    lane.parse()
    lane.read()
    Path(result).parent.mkdir(parents=True)
    Path(result).touch()
    check()
    lane.file.unlink()
    if content is not None:
        lane.file.write_text(content)
    with pytest.raises(MillraceError) as caught:
        check()
    line = str(caught.value)
    assert (
        line.startswith("kept/assignment.jsonl: the file is missing, or empty") and result in line
    )
    assert "`git checkout kept/assignment.jsonl`" in line and "delete results too" in line
