"""Readers of images measured on a small folder and its records."""

from __future__ import annotations

import pytest

from millrace.common import jsonl
from millrace.image import benchmark_readers
from millrace.image.training import readers
from tests.image.record_sets import write_set
from tests.image.trees import write_picture

RECORDS = {"H5, on_group": 120, "H5, on_demand": 120}


@pytest.mark.parametrize(
    "only, images",
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


def test_a_pass_reads_as_many_images_as_are_asked_for_and_0_is_all(tmp_path):
    for number in range(3):
        for split in ("train", "val"):
            write_picture(tmp_path / "images" / split / "a" / f"{number}.png", number)
    write_set(tmp_path / "records", [70, 60])
    for images, expected in ((0, [3, 130, 130]), (2, [2, 64, 2]), (65, [3, 70, 65])):
        each = readers.readers(tmp_path / "images", [tmp_path / "records"], "", images)
        read = [sum(map(reader.__getitem__, range(len(reader)))) for _, reader in each]
        assert read == expected
    # By record, in a random order; whole, file after file.
    _, whole, single = (
        reader for _, reader in readers.readers(tmp_path / "images", [tmp_path / "records"], "", 0)
    )
    assert whole.chunks == [[(0, 0, 64)], [(0, 64, 64)], [(1, 0, 64)]]
    places = [place for chunk in single.chunks for place in chunk]
    assert len({*places}) == 130 and places != sorted(places)


def test_the_rate_is_that_of_the_median_pass(monkeypatch):
    seconds = iter([0, 9, 10, 11, 20, 22])
    monkeypatch.setattr(readers.time, "perf_counter", lambda: next(seconds))
    row = readers.measure("a", [4, 4], workers=0)
    assert (row["images"], row["images_per_second"]) == (8, 4)
