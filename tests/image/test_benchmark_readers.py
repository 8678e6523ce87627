"""Readers of images measured on a small folder and its records."""

from __future__ import annotations

import pytest

from millrace.common import jsonl
from millrace.image import benchmark_readers
from tests.image.record_sets import write_set
from tests.image.trees import write_picture

RECORDS = {"H5, on_group": 120, "H5, on_demand": 120}


@pytest.mark.parametrize(
    ("only", "images"),
    [
        ("h5", RECORDS),
        ("image_folder", {"image folder": 6}),
        ("", {"image folder": 6} | RECORDS),
    ],
)
def test_each_reader_is_measured_with_each_number_of_workers(tmp_path, only, images):
    for number in range(6):
        for split in ("train", "val"):
            place = tmp_path / "images" / split / f"class {number % 2}" / f"{number}.png"
            write_picture(place, number)
    write_set(tmp_path / "records", [40, 41, 39])
    rates = tmp_path / "readers.json"
    command = [f"--raw_data_dir={tmp_path / 'images'}", "--records", str(tmp_path / "records")]
    command += ["--workers", "0", "1", f"--output={rates}", *([f"--only={only}"] if only else [])]
    assert benchmark_readers.main(command) == 0
    found = jsonl.read(rates)["readers"]
    assert all(row["images_per_second"] > 0 for row in found)
    for workers in (0, 1):
        rows = [row for row in found if row["workers"] == workers]
        assert {row["reader"]: row["images"] for row in rows} == images
