"""Which partitions of images a change of the folder makes pending."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from millrace.common import jsonl
from millrace.common.workflow import placements
from millrace.common.workflow.sources import Sources, SourcesMissing, sync
from millrace.image import sources
from tests.image.trees import small_tree

RECORDS = {"train_files": 6, "val_files": 1}


class Tree:
    """A small image folder, and the partition files that a sync makes of it."""

    def __init__(self, folder: Path) -> None:
        self.root, self.results = small_tree(folder / "images"), folder / "results"
        self.partitions = self.results / "partitions"

    def dry(self, **records: object) -> Sources:
        """What a dry run syncs."""
        settings = sources.Settings(str(self.root), 10, RECORDS | records)
        return sync(sources.collect, settings, self.partitions)

    def sync(self, **records: object) -> Sources:
        """What a real run syncs."""
        synced = self.dry(**records)
        placements.keep_draft(self.partitions)
        return synced

    def build(self) -> None:
        """As if the jobs had run."""
        for split, names in self.sync().partitions.items():
            paths = [f"partitions/{name}.json" for name in names]
            for path in (*paths, f"{split}/records.json"):
                (self.results / "records" / path).parent.mkdir(parents=True, exist_ok=True)
                (self.results / "records" / path).write_text("")

    def inputs(self) -> dict[str, tuple[int, bytes]]:
        """All that the jobs' times are compared with."""
        paths = [
            path for name in ("", "splits") for path in (self.partitions / name).glob("*.json")
        ]
        return {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in paths}


@pytest.fixture
def tree(tmp_path) -> Tree:
    made = Tree(tmp_path)
    made.build()
    return made


def images(tree: Tree) -> list[str]:
    """The paths of train's images, partition by partition."""
    contents = [jsonl.read(path) for path in sorted(tree.partitions.glob("train-*.json"))]
    rows = [row for content in contents for plan in content["files"] for row in plan["rows"]]
    return [row.split(" ", 3)[3] for row in rows]


def test_a_file_that_comes_or_goes_is_said_though_no_image_changes(tree):
    assert tree.sync().notes == []
    stray = tree.root / "train/class 1/notes.txt"
    stray.touch()
    assert "1 file of train/ left out" in tree.dry().notes[0]
    stray.unlink()
    assert tree.dry().notes == []


def test_an_image_that_was_replaced_by_one_of_its_size_is_said(tree):
    os.utime(tree.root / "train/class 0/000.png", ns=(1, 1))
    assert tree.dry().changes.startswith("1 image changed (train/class 0/000.png: replaced)")


def test_images_whose_labels_a_new_class_moves_are_said(tree):
    (tree.root / "val/class 0").rename(tree.root / "val/a class")
    assert tree.dry().changes.startswith("34 images changed, 2 new, 2 gone")
    lines = (tree.partitions / "changes.txt").read_text().splitlines()
    assert "changed\ttrain/class 0/000.png\tanother label" in lines


@pytest.mark.parametrize("files", ["train-*.json", "splits/train.json"])
def test_what_jobs_read_is_written_again_if_it_is_lost(tree, files):
    tree.sync()
    before = tree.inputs()
    next(tree.partitions.glob(files)).unlink()
    assert tree.dry().changes == "" and tree.inputs() == before


def test_other_pixels_change_every_partition_of_train_though_no_image_has_changed(tree):
    tree.sync()
    before = tree.inputs()
    tree.dry(train_size=32)
    trains = [name for name in before if name.startswith("train-")]
    assert trains and all(tree.inputs()[name] != before[name] for name in trains)
    tree.dry()
    assert tree.inputs() == before


def test_a_partition_holds_one_file_at_least(tree):
    settings = sources.Settings(str(tree.root), 1, RECORDS)
    assert len(sync(sources.collect, settings, tree.partitions).partitions["train"]) == 6


def test_a_folder_of_the_demo_that_holds_no_train_is_an_error(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings = sources.Settings(str(sources.DEMO_ROOT), 10, RECORDS)

    def missing() -> SourcesMissing:
        return sync(sources.collect, settings, tmp_path / "partitions").missing

    assert missing().pristine and "no images at resources/image/demo" in str(missing())
    sources.DEMO_ROOT.mkdir(parents=True)
    assert not missing().pristine and "snakemake image_fetch_demo" in str(missing())
