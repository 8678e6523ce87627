"""Images of train that are in val too: found by bytes and by picture, and rejected, kept or
refused."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from PIL import Image, ImageDraw, ImageEnhance
from sklearn.datasets import load_sample_images

from millrace.common import jsonl
from millrace.common.errors import MillraceError
from millrace.common.fingerprints import pictures
from millrace.image import create_records, fetch_demo, status
from millrace.image.records import convert
from millrace.image.records.conversion import of_tree
from millrace.image.records.folder import read_tree
from millrace.image.records.leaks import find
from millrace.image.records.options import RecordOptions
from millrace.image.records.record_set import RecordSet
from tests.files import contents

SMALL = ["--train-size", "16", "--val-resize", "16", "--val-size", "16", "--train-files", "2"]
# What train has of val: in "alike" a photo encoded anew, in "smaller" one of half the size.
LEAKS = {
    "cat/same.png": ("bytes", "cat/0.png", ""),
    "dog/same, other label.png": ("bytes", "cat/1.png", ", which has another label: cat"),
    "cat/alike.jpg": ("picture", "cat/2.png", ""),
    "dog/smaller.png": ("picture", "dog/3.png", ""),
}


def photo(number: int) -> Image.Image:
    """A piece of a photo; no two pieces overlap."""
    flower = load_sample_images().images[number % 2]
    top, left = divmod(number // 2 * 100, 600)
    return Image.fromarray(flower[top : top + 100, left : left + 100])


def write(path: Path, picture: Image.Image, **options: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    picture.save(path, **options)


@pytest.fixture
def raw(tmp_path: Path, monkeypatch) -> Path:
    """Photos in train and val, and four of val in train again."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "raw"
    for number, label in enumerate(("cat", "cat", "cat", "dog")):
        write(folder / f"val/{label}/{number}.png", photo(number))
    for number in range(4, 10):
        write(folder / f"train/{('cat', 'dog')[number % 2]}/{number}.png", photo(number))
    for image, (_, original, _) in LEAKS.items():
        picture = Image.open(folder / "val" / original)
        if "smaller" in image:
            picture = picture.resize((50, 50))
        write(folder / "train" / image, picture, **({"quality": 75} if "alike" in image else {}))
    return folder


def converted(raw: Path, *flags: str, code: int = 0) -> Path:
    out = Path("results/image/records")
    argv = ["--raw-data-dir", str(raw), "--local-scratch-dir", str(out), "--threads", "2"]
    assert create_records.main([*argv, *SMALL, *flags]) == code
    return out / "train"


def rows(path: Path) -> dict[str, dict]:
    return {row["image"]: row for row in map(json.loads, path.read_text().splitlines())}


@pytest.mark.parametrize(
    "on_leak, verdict, records",
    [("reject", "rejected", 6), ("keep", "kept", 10)],
)
def test_what_val_holds_leaves_train_or_stays_and_is_said(
    raw, capsys, monkeypatch, on_leak, verdict, records
):
    train = converted(raw, "--on-leak", on_leak)
    assert len(RecordSet.open(train.parent)) == records
    ledger = jsonl.read(train / "ledger.json")
    counts = ledger["rejected" if on_leak == "reject" else "warnings"]
    assert counts["also_in_val"] == 4 and ledger["warnings"]["other_label_held_out"] == 1

    lines = [
        f"4 images of train that are also in val: {verdict}",
        "1 image of these with another label where held out",
    ]
    seen = capsys.readouterr().err
    assert all(f" INFO {line}\n" in seen for line in lines)
    monkeypatch.setattr(status, "partition_files", lambda lane: ["train", "val"])
    said = status.facts()[str(train / "records.json")]
    assert all(f"; {line}" in said for line in lines)
    counts = f"{records} records of 2 classes in 2 files, {10 - records} rejected"
    assert said.startswith(f"train: {counts}; ")

    found = rows(train / "leaks.jsonl")
    assert found.keys() == LEAKS.keys()
    for image, (what, original, label) in LEAKS.items():
        detail = f"the same {what} as {original} of val{label}"
        assert (found[image]["original"], found[image]["detail"]) == (original, detail)
        labels = (found[image]["label"], found[image]["original_label"])
        assert labels == (image[:3], original[:3])
    rejects = rows(train / "rejects.jsonl")
    assert rejects.keys() == (LEAKS.keys() if on_leak == "reject" else set())
    assert all(row["reason"] == "also_in_val" for row in rejects.values())
    assert "also_in" not in (train.parent / "val/ledger.json").read_text()


def test_rejects_of_both_kinds_are_in_the_order_of_their_images(raw):
    (raw / "train/dog/unreadable.png").write_bytes(b"no image")
    rejects = rows(converted(raw, "--max-error-fraction", "0.5") / "rejects.jsonl")
    assert list(rejects) == sorted([*LEAKS, "dog/unreadable.png"])


def test_of_pictures_with_one_hash_the_one_with_the_same_pixels_is_the_original(raw):
    brighter = photo(3).point([min(value + 9, 255) for value in range(256)] * 3)
    write(raw / "val/dog/0.png", brighter)
    # One of another hash, which is near too, but of other pixels, is listed last.
    flatter = ImageEnhance.Contrast(photo(3)).enhance(0.8)
    assert pictures.look(flatter) != pictures.look(photo(3))
    write(raw / "val/dog/9.png", flatter)
    found = rows(converted(raw, "--on-leak", "keep") / "leaks.jsonl")
    assert found["dog/smaller.png"]["original"] == "dog/3.png"


def test_other_letters_on_the_same_plate_or_in_the_alpha_are_another_picture(raw):
    for split, letters in (("train", "AB 1234 CD"), ("val", "XE 9807 KM")):
        plate = Image.new("RGB", (256, 64), "white")
        drawing = ImageDraw.Draw(plate)
        drawing.rectangle((0, 0, 255, 63), outline="black")
        drawing.text((60, 25), letters, fill="black")
        write(raw / split / "cat/plate.png", plate)
        icon = Image.new("RGBA", (64, 64))
        ImageDraw.Draw(icon).text((5, 5), letters, fill="black")
        write(raw / split / "cat/icon.png", icon)
    assert rows(converted(raw) / "leaks.jsonl").keys() == LEAKS.keys()


def test_of_two_files_with_the_same_bytes_the_first_is_the_original(raw):
    (raw / "val/dog/twin.png").write_bytes((raw / "val/cat/0.png").read_bytes())
    found = rows(converted(raw, "--on-leak", "keep") / "leaks.jsonl")
    assert found["cat/same.png"]["original"] == "cat/0.png"


def test_an_error_writes_no_index_and_names_the_first(raw, capsys):
    converted(raw, "--on-leak", "keep")
    train = converted(raw, "--on-leak", "error", code=1)
    words = "4 images of train that are also in val, the first: cat/alike.jpg, the same picture as"
    seen = capsys.readouterr().err
    assert words in seen and "set image.on_leak to reject" in seen
    assert not (train / "records.json").exists()
    assert rows(train / "leaks.jsonl").keys() == LEAKS.keys()


def test_another_word_gives_the_bytes_of_a_conversion_of_its_own(raw):
    train = converted(raw, "--on-leak", "keep")
    kept = contents(train)
    converted(raw)
    assert (train / "records.json").read_bytes() != kept["records.json"]
    converted(raw, "--on-leak", "keep")
    assert contents(train) == kept


@pytest.mark.parametrize(
    "make",
    [
        lambda path: None,
        lambda path: path.write_text('{"dealt": "another plan", "prints": []}'),
        os.mkfifo,
    ],
)
def test_a_file_whose_prints_are_missing_or_of_another_or_a_pipe_is_converted_again(raw, make):
    train = converted(raw)
    before = contents(train.parent)
    for path in train.parent.rglob("*.prints.json"):
        path.unlink()
        make(path)
    converted(raw)
    assert contents(train.parent) == before


@pytest.mark.parametrize("content", [b"no image", None])
def test_an_image_that_can_be_compared_no_more_is_named(raw, content):
    path = raw / "train/cat/alike.jpg"
    conversion = of_tree(read_tree(raw), "train", RecordOptions(), Path("out"))
    path.unlink()
    if content:
        path.write_bytes(content)
    with pytest.raises(MillraceError, match=r"cat/alike.jpg: cannot be read any more: .* Run it"):
        conversion.content("cat/alike.jpg")


def test_an_image_of_val_that_goes_comes_back_to_train(raw):
    converted(raw)
    (raw / "val/cat/0.png").unlink()
    train = converted(raw)
    assert rows(train / "rejects.jsonl").keys() == LEAKS.keys() - {"cat/same.png"}
    assert len(RecordSet.open(train.parent)) == 7


def test_the_demos_digits_have_no_false_pair(tmp_path):
    assert fetch_demo.main(["--index", str(tmp_path / "demo.json")]) == 0
    options = RecordOptions(train_files=1, val_files=1, val_size=8, val_resize=8, train_size=8)
    tree = read_tree(tmp_path / "demo")
    train, val = (of_tree(tree, split, options, tmp_path) for split in ("train", "val"))
    for conversion in (train, val):
        convert.convert(conversion, threads=2)
    with ThreadPoolExecutor(2) as pool:
        assert find(train, val, pool) == []
        # All pictures are there: each is found in its own split.
        assert len(find(val, val, pool)) == len(tree.rows["val"]) == 360
