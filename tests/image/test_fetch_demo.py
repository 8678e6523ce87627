"""The demo's image folder."""

from __future__ import annotations

import json

from millrace.image import fetch_demo
from millrace.image.records.folder import read_tree


def test_the_demo_is_an_image_folder_of_all_digits_and_the_same_again(tmp_path):
    contents = []
    for name in ("a", "b"):
        assert fetch_demo.main(["--index", str(tmp_path / name / "demo.json")]) == 0
        tree = read_tree(tmp_path / name / "demo")
        contents.append({path.name: path.read_bytes() for path in (tmp_path / name).rglob("*.*")})
    assert tree.classes == [str(digit) for digit in range(10)] and contents[0] == contents[1]
    assert {split: len(rows) for split, rows in tree.rows.items()} == {"train": 1437, "val": 360}
    assert json.loads(contents[0]["demo.json"])["images"] == 1797
