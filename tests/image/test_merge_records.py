"""The workflow's way: partitions of the sources, their conversion, and the index."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from pathlib import Path

import pytest

from millrace.common.leaks import leakage
from millrace.common.workflow import sources as workflow_sources
from millrace.common.workflow.sources import Sources, SourcesMissing
from millrace.image import create_records, merge_records, sources
from millrace.image.inputs import PARTITIONS
from millrace.image.records.options import RecordOptions
from tests.files import contents
from tests.image.test_create_records import SMALL, all_records, convert, damage
from tests.image.trees import small_tree, write_picture

OPTIONS = {"train_size": 8, "val_resize": 8, "val_size": 8, "train_files": 4}


def parse(raw: str = "raw", **options: object) -> Sources:
    """What a parse of the workflow finds in the current folder."""
    records = dataclasses.asdict(RecordOptions(**{**OPTIONS, **options}))
    settings = sources.Settings(raw, 14, records)
    return workflow_sources.sync(sources.collect, settings, PARTITIONS)


def merge(split: str, max_error_fraction: str, *flags: str) -> int:
    argv = ["--split", f"{PARTITIONS}/splits/{split}.json", "--partitions-dir", PARTITIONS]
    argv += ["--index", f"results/image/records/{split}/records.json", *flags]
    return merge_records.main([*argv, "--max-error-fraction", max_error_fraction])


def build(
    max_error_fraction: str = "0.1", on_leak: str = leakage.REJECT, **options: object
) -> Path:
    """Parse, and run all jobs that a run would have; returns the records' folder."""
    found, records = parse(**options), Path("results/image/records")
    for blocks in found.partitions.values():
        for block in blocks:
            partition, report = f"{PARTITIONS}/{block}.json", f"{records}/partitions/{block}.json"
            argv = ["--partition", partition, "--local-scratch-dir", str(records)]
            assert create_records.main([*argv, "--report", report]) == 0
    for split in found.partitions:
        held_out = []
        if split == "train":
            other = next(name for name in found.partitions if name != split)
            held_out = ["--held-out", f"{PARTITIONS}/splits/{other}.json", "--on-leak", on_leak]
        assert merge(split, max_error_fraction, *held_out) == 0
    return records


def digests(folder: Path, pattern: str) -> dict[str, tuple[str, int]]:
    return {
        path.name: (hashlib.sha256(path.read_bytes()).hexdigest(), os.stat(path).st_mtime_ns)
        for path in sorted(folder.glob(pattern))
    }


@pytest.fixture
def raw(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return small_tree(tmp_path / "raw", train=7)


def test_partitions_give_the_bytes_of_the_command_and_a_report_of_damaged_images(raw, tmp_path):
    reasons = damage(raw / "train")
    build("0.5", train_files=2)
    records = build("0.5")
    assert parse().partitions == {"train": ["train-00000", "train-00001"], "val": ["val-00000"]}
    by_hand = convert(raw, tmp_path / "hand", *SMALL, "--max-error-fraction", "0.5")
    for split in ("train", "val"):
        assert contents(records / split) == contents(by_hand / split)
    report = [
        json.loads(path.read_text())
        for path in sorted((records / "partitions").glob("train-*.json"))
    ]
    assert {
        name for each in report for file in each.values() for name, *_ in file["rejects"]
    } == set(reasons)
    # Reports of partitions that are no more go with the merge.
    build("0.5", train_files=1)
    names = {path.name for path in (records / "partitions").iterdir()}
    assert names == {"train-00000.json", "val-00000.json"}


def convert_train(found: Sources, records: Path) -> list[int]:
    """Exit codes of the jobs that convert train."""
    places = [f"{PARTITIONS}/{block}.json" for block in found.partitions["train"]]
    return [
        create_records.main(["--partition", place, "--local-scratch-dir", str(records)])
        for place in places
    ]


def test_an_image_that_changes_after_the_parse_or_between_the_jobs_is_an_error(raw, capsys):
    records, path = Path("results/image/records"), raw / "train/class 2/020.png"
    found, content = parse(), path.read_bytes()
    for other in (content + b"more", content[:-1], content[:-1] + b"0"):
        path.write_bytes(other)
        assert sorted(convert_train(found, records)) == [0, 1]
        said = capsys.readouterr().err
        assert "020.png: has changed since it was listed. Run the same command" in said

    # Of the same size and time, so the merge finds it when it writes a file again.
    path.write_bytes(content)
    damage(raw / "train")
    assert convert_train(parse(), records) == [0, 0]
    for path in raw.rglob("*.png"):
        if path.is_file():
            before = path.stat()
            path.write_bytes(b"0" * before.st_size)
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert merge("train", "0.5") == 1
    assert "(no_image), read before. Run it again" in capsys.readouterr().err
    assert not (records / "train/records.json").exists()


@pytest.mark.parametrize("lost", [True, False])
def test_an_index_lists_no_file_that_is_missing_or_of_other_images(raw, capsys, lost):
    records = build()
    if lost:
        (records / "train/train-00001-of-00004.h5").unlink()
    else:
        write_picture(raw / "train/class 0/000.png", 99, size=(8, 8))
    parse()
    assert merge("train", "0.1") == 1
    assert (
        "is missing, or was made from other images. Convert again: snakemake image_records -"
        in capsys.readouterr().err
    )


def test_an_index_is_refused_whose_held_out_images_cannot_be_told(raw, capsys):
    records = build()
    next((records / "val").glob("*.prints.json")).unlink()
    assert merge("train", "0.1", "--held-out", f"{PARTITIONS}/splits/val.json") == 1
    said = capsys.readouterr().err
    assert (
        "prints.json: is missing, or of other images. Convert again: snakemake image_records -"
        in said
    )


def test_an_index_is_gone_as_soon_as_a_file_of_it_is_written_anew(raw):
    records = build()
    assert convert_train(parse(), records) == [0, 0] and (records / "train/records.json").exists()
    assert convert_train(parse(train_size=6), records) == [0, 0]
    assert not (records / "train/records.json").exists() and (records / "val/records.json").exists()


def test_a_parse_writes_only_what_has_changed_and_says_it(raw):
    assert parse().changes == "27 images new -> 3 of 3 partitions and the index"
    build()
    before = digests(Path(PARTITIONS), "*.json")
    assert parse().changes == "" and digests(Path(PARTITIONS), "*.json") == before
    write_picture(raw / "train/class 0/000.png", 99, size=(8, 8))
    write_picture(raw / "train/class 9/new.png", 98, size=(8, 8))
    (raw / "val/class 1/001.png").unlink()
    write_picture(raw / "val/class 9/new.png", 97, size=(8, 8))
    changes = parse().changes
    assert changes.startswith("1 image changed (train/class 0/000.png: replaced), 2 new (")
    assert "1 gone" in changes


def test_few_files_are_written_again_when_an_image_is_replaced_or_damaged(raw):
    before = digests(build() / "train", "*.h5")
    write_picture(raw / "train/class 0/000.png", 99, size=(8, 8))
    replaced = digests(build() / "train", "*.h5")
    assert sum(replaced[name] != before[name] for name in before) == 1
    (raw / "train/class 1/004.png").write_bytes(b"no image")
    damaged = digests(build() / "train", "*.h5")
    assert sum(damaged[name] != replaced[name] for name in before) <= 2
    records, images, _, ids = all_records(Path("results/image/records/train"))
    assert sorted(ids) == list(range(20)) and max(records.lengths) - min(records.lengths) <= 1
    assert len({image.tobytes() for image in images}) == 20


@pytest.mark.parametrize("change", ["added", "removed", "renamed"])
def test_a_conversion_after_a_change_gives_the_bytes_of_one_from_the_beginning(
    raw, tmp_path, change
):
    build()
    if change == "added":
        write_picture(raw / "train/class 2/new.png", 99, size=(8, 8))
        # Images of the user's, and no records of a folder that was renamed.
        images = Path("results/image/records/validation")
        images.mkdir()
    elif change == "removed":
        (raw / "train/class 1/004.png").unlink()
    else:
        (raw / "val").rename(raw / "validation")
    anew = convert(raw, tmp_path / "hand", *SMALL)
    records = build()
    assert parse().changes == "" and (change != "added" or images.is_dir())
    assert {path.name for path in records.glob("*/*.h5")} == {
        path.name for path in anew.glob("*/*.h5")
    }
    for path in records.glob("*/*.h5"):
        assert path.read_bytes() == (anew / path.relative_to(records)).read_bytes()


@pytest.mark.parametrize(
    "place, words",
    [
        ("nowhere", "image.raw_data_dir: nowhere does not exist; expected there: train/<class>/"),
        ("raw/train", "set it to raw"),
    ],
)
def test_a_folder_without_images_is_named(raw, place, words):
    missing = parse(place).missing
    assert isinstance(missing, SourcesMissing)
    assert not missing.pristine and words in missing.text
