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
def test_each_reader_is_measured_warm_with_each_number_of_workers_and_cold(tmp_path, only, images):
    for number in range(6):
        for split in ("train", "val"):
            write_picture(
                tmp_path / "images" / split / f"class {number % 2}" / f"{number}.png", number
            )
    write_set(tmp_path / "records", [40, 41, 39])
    page = tmp_path / "readers.html"
    command = [
        f"--raw_data_dir={tmp_path / 'images'}",
        "--records",
        str(tmp_path / "records"),
        "--workers=0",
    ]
    assert (
        benchmark_readers.main(
            [*command, *([f"--only={only}"] if only else []), f"--output={page}"]
        )
        == 0
    )
    found = jsonl.read(page.with_suffix(".json"))
    assert all(
        row["images_per_second"] > 0 and row["disk_bytes_per_image"] > 0 for row in found["readers"]
    )
    for state in ("warm", "cold"):
        assert {
            row["reader"]: row["images"] for row in found["readers"] if row["state"] == state
        } == images
    assert "Image readers" in page.read_text() and len(list(tmp_path.iterdir())) == 4
