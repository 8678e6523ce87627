"""The demo's image folder."""

from __future__ import annotations

import json

from millrace.image import fetch_demo
from millrace.image.records.folder import read_tree
from tests.files import contents


def test_the_demo_is_an_image_folder_of_all_digits_and_the_same_again(tmp_path):
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        assert fetch_demo.main(["--index", str(folder / "demo.json")]) == 0
    files, again = map(contents, folders)
    assert files == again
    tree = read_tree(folders[0] / "demo")
    assert tree.classes == [str(digit) for digit in range(10)]
    assert {split: len(rows) for split, rows in tree.rows.items()} == {"train": 1437, "val": 360}
    assert json.loads(files["demo.json"])["images"] == 1797
