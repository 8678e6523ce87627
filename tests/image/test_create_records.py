"""Image folders into record files, as the command line does it."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import EpsImagePlugin, Image

from millrace.common import cli, settings
from millrace.common.errors import Unusable
from millrace.image import create_records
from millrace.image.records import convert as convert_module
from millrace.image.records import pixels
from millrace.image.records.dataset import HDF5Record
from millrace.image.records.folder import read_tree
from millrace.image.records.options import RecordOptions
from millrace.image.records.pixels import read_image, resized
from millrace.image.records.reader import RecordReader
from millrace.image.records.record_file import multiset_digest
from millrace.image.records.record_set import RecordSet
from tests.files import contents
from tests.image.trees import odd_tree, picture, small_tree, write_picture


def convert(raw: Path, out: Path, *flags: str, code: int = 0) -> Path:
    argv = ["--raw_data_dir", str(raw), "--local_scratch_dir", str(out), "--threads", "2", *flags]
    assert create_records.main(argv) == code
    return out


SMALL = ("--train-size", "8", "--val-resize", "8", "--val-size", "8", "--train-files", "4")


def all_records(folder: Path) -> tuple[RecordSet, np.ndarray, np.ndarray, np.ndarray]:
    """A set with the images, labels and ids of all its files."""
    records = RecordSet.open(folder.parent, folder.name)
    reader = RecordReader(records)
    parts = [reader.read(file, 0, int(length)) for file, length in enumerate(records.lengths)]
    images = [image for part in parts for image in part.images]
    return records, images, *(np.concatenate([part[column] for part in parts]) for column in (1, 2))


def rejects(out: Path, split: str = "train") -> list[dict]:
    return [json.loads(line) for line in (out / split / "rejects.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("raw", ["/nfs/home/Imagenet_ILSVRC2012/", "/nfs/home/Imagenet_ILSVRC2012"])
@pytest.mark.parametrize(
    "words",
    [
        "--raw_data_dir={} --local_scratch_dir=D",
        "--raw-data-dir={} --local-scratch-dir D/",
        "--raw_data_dir {} --local-scratch-dir=D",
    ],
)
def test_the_original_command_is_read_as_typed(words, raw):
    args = create_records.make_parser().parse_args(cli.hyphenated(words.format(raw).split()))
    assert args.raw_data_dir == Path(
        "/nfs/home/Imagenet_ILSVRC2012"
    ) and args.local_scratch_dir == Path("D")
    assert settings.from_args(RecordOptions, args) == RecordOptions()


def resized_and_cropped(path: Path) -> np.ndarray:
    """What torchvision's Resize(256) and CenterCrop(224) make of an image."""
    with Image.open(path) as opened:
        whole = opened.convert("RGB")
    width, height = whole.size
    if width <= height:
        size = (256, int(256 * height / width))
    else:
        size = (int(256 * width / height), 256)
    whole = whole.resize(size, Image.BILINEAR)
    left, top = (round((side - 224) / 2.0) for side in size)
    return np.asarray(whole.crop((left, top, left + 224, top + 224)))


def test_val_is_what_imagefolder_with_resize_and_centre_crop_gives(tmp_path):
    raw = odd_tree(tmp_path / "raw")
    out = convert(raw, tmp_path / "out", "--val-files", "3", "--on-leak", "keep")
    classes = ["Gamma", "alpha", "beta", "nested"]
    gamma = ["A.jpeg", "g.pgm", "u.JPG", "v.ppm", "w.tiff", "x.tIf", "y.Webp", "z.BMP", "ä ö.png"]
    nested = ["m.png", "n/2.png", "n-1/1.png", "n/deep/3.png"]
    beta = sorted(path.name for path in (raw / "val/beta").iterdir())
    names = {
        "Gamma": gamma,
        "alpha": ["a png.JPEG", "bad exif.jpg", "bad exif.webp", "turned 3.jpg", "turned 6.jpg"],
        "beta": beta,
        "nested": nested,
    }
    samples = [
        (f"{each}/{name}", label) for label, each in enumerate(classes) for name in names[each]
    ]
    assert [(row[0], row[3]) for row in read_tree(raw).rows["val"]] == samples

    val = HDF5Record(f"{out}/val/")
    assert val.classes == classes and val.class_to_idx == {
        name: label for label, name in enumerate(classes)
    }
    assert val.targets == [label for _, label in samples] and len(val) == len(samples)
    for (name, label), (image, target) in zip(samples, val, strict=True):
        assert np.array_equal(image, resized_and_cropped(raw / "val" / name)), name
        assert target == label
    ledger = json.loads((out / "val/ledger.json").read_text())
    assert (
        ledger["warnings"]["exif_orientation"] == 2 and ledger["warnings"]["PNG named .JPEG"] == 1
    )
    assert ledger["warnings"]["mode CMYK"] == 1


def test_train_is_shuffled_by_the_seed_and_a_permutation_of_its_images(tmp_path):
    raw = small_tree(tmp_path / "raw", train=7)
    outs = [
        convert(raw, tmp_path / name, *SMALL, "--seed", seed)
        for name, seed in (("a", "1"), ("b", "1"), ("c", "2"))
    ]
    records, images, labels, ids = all_records(outs[0] / "train")
    assert (
        records.lengths.tolist() == np.load(outs[0] / "train/length.npy").tolist() == [6, 5, 5, 5]
    )
    assert [RecordSet.open(out).seed for out in outs] == [1, 1, 2]
    assert [file.name for file in records.files][::3] == [
        "train-00000-of-00004.h5",
        "train-00003-of-00004.h5",
    ]
    assert sorted(ids) == list(range(21)) and np.bincount(labels).tolist() == records.counts == [
        7,
        7,
        7,
    ]
    assert len({image.tobytes() for image in images}) == 21 and np.any(np.diff(labels) < 0)
    same = [contents(out / "train") for out in outs]
    assert same[0] == same[1] and same[0] != same[2]
    val, _, labels, ids = all_records(outs[0] / "val")
    assert (
        np.all(np.diff(labels) >= 0)
        and ids.tolist() == list(range(6))
        and val.classes == records.classes
    )


@pytest.mark.parametrize(
    "split, files, lengths",
    [
        ("train", 30, [1] * 21),
        ("train", 2, [11, 10]),
        ("val", 4, [2, 2, 1, 1]),
    ],
)
def test_lengths_differ_by_one_at_most_and_no_file_is_empty(tmp_path, split, files, lengths):
    flags = (f"--{split}-files", str(files))
    out = convert(small_tree(tmp_path / "raw", train=7), tmp_path / "out", *SMALL, *flags)
    assert RecordSet.open(out, split).lengths.tolist() == lengths


def damage(folder: Path) -> dict[str, str]:
    """Damage six of the images; returns their names with the reasons."""
    names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*.png"))[::3]
    cut = (folder / names[0]).read_bytes()
    for name, content in zip(names, (cut[:-60], b"", b"no image at all", cut[:20]), strict=False):
        (folder / name).write_bytes(content)
    (folder / names[4]).unlink()
    (folder / names[4]).symlink_to("nowhere.png")
    (folder / names[5]).unlink()
    os.mkfifo(folder / names[5])  # nobody writes into it
    reasons = ("damaged", "empty", "no_image", "damaged", "missing", "missing")
    return dict(zip(names, reasons, strict=False))


def test_damaged_images_are_listed_and_the_lengths_still_differ_by_one_at_most(tmp_path):
    raw = small_tree(tmp_path / "raw", train=7)
    reasons = damage(raw / "train")
    flags = (*SMALL, "--max-error-fraction")
    assert not (
        convert(raw, tmp_path / "out", *flags, "0.1", code=1) / "train/records.json"
    ).exists()
    out = convert(raw, tmp_path / "out", *flags, "0.5")
    listed = rejects(out)
    assert {each["image"]: each["reason"] for each in listed} == reasons
    assert all(each["detail"] for each in listed)
    assert [each["image"] for each in listed] == sorted(reasons)
    records, _, labels, ids = all_records(out / "train")
    assert records.lengths.tolist() == [4, 4, 4, 3] and sorted(ids) == list(range(15))
    assert records.counts == np.bincount(labels).tolist()
    assert records.ids_digest == multiset_digest([np.arange(15)])
    before = {path: os.stat(path).st_mtime_ns for path in (out / "train").glob("*.h5")}
    convert(raw, tmp_path / "out", *flags, "0.5")
    assert {path: os.stat(path).st_mtime_ns for path in before} == before


def test_files_that_would_hold_no_record_are_refused(tmp_path, capsys):
    raw = small_tree(tmp_path / "raw", train=7)
    damage(raw / "train")
    flags = (*SMALL, "--train-files", "16", "--max-error-fraction", "1")
    assert not (convert(raw, tmp_path / "out", *flags, code=1) / "train/records.json").exists()
    assert "15 images of 21 can be used, for 16 files: class 0" in capsys.readouterr().err
    assert len(RecordSet.open(convert(raw, tmp_path / "out", *flags, "--train-files", "15"))) == 15


GHOSTSCRIPT = """#!/bin/sh
touch {mark}
exec sleep 0
"""


@pytest.mark.parametrize("name", ["drawing.jpg", "drawing.TIFF", "drawing.png"])
def test_an_image_of_another_format_is_rejected_and_starts_no_program(tmp_path, monkeypatch, name):
    """Pillow has Ghostscript draw an EPS, whatever its name is."""
    raw, mark, program = small_tree(tmp_path / "raw"), tmp_path / "started", tmp_path / "bin/gs"
    program.parent.mkdir()
    program.write_text(GHOSTSCRIPT.format(mark=mark))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setattr(EpsImagePlugin, "gs_binary", None)  # not looked for yet
    eps = raw / "train/class 0" / name
    picture(1, (8, 8)).save(eps, "EPS")
    picture(2, (8, 8)).save(raw / "val/class 0/moving.jpg", "GIF")
    out = convert(raw, tmp_path / "out", *SMALL, "--max-error-fraction", "0.5")
    assert not mark.exists()
    for split, path in (("train", f"class 0/{name}"), ("val", "class 0/moving.jpg")):
        (reject,) = rejects(out, split)
        assert (reject["image"], reject["reason"]) == (path, "no_image")
        assert "no image of a known format (JPEG, PNG, PPM, BMP, TIFF, WEBP)" in reject["detail"]


def test_an_image_of_too_many_pixels_is_rejected(tmp_path, monkeypatch):
    """By its header: tests/fuzz holds the memory that it takes."""
    raw = small_tree(tmp_path / "raw")
    write_picture(raw / "train/class 0/large.png", 1, size=(9, 8))
    monkeypatch.setattr(pixels, "MAX_PIXELS", 64)
    (reject,) = rejects(convert(raw, tmp_path / "out", *SMALL))
    assert reject["detail"] == "9 x 8 pixels, more than 64"
    assert (reject["image"], reject["reason"]) == ("class 0/large.png", "too_large")
    # Of many more, Pillow itself refuses the header.
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
    with pytest.raises(Unusable) as refused:
        read_image((raw / "train/class 0/large.png").read_bytes())
    assert refused.value.reason == "too_large"


def tiff_of(bits: int, planar: int, compression: int = 1) -> bytes:
    """Two by two black pixels of RGB, whose channels lie apart if `planar` is 2."""
    strip = zlib.compress(bytes(8)) if compression == 8 else bytes(24)
    at = 8 + len(strip)
    tags = {256: 2, 257: 2, 258: bits, 259: compression, 262: 2, 273: at, 277: 3, 278: 2}
    entries = b""
    for tag, value in (tags | {279: at + 12, 284: planar}).items():
        kind, count = (4, 3) if tag in (273, 279) else (3, 1)
        entries += struct.pack("<HHII", tag, kind, count, value)
    strips = struct.pack("<6I", 8, 8, 8, *3 * [len(strip)])
    head = b"II*\0" + struct.pack("<I", at + 24)
    return head + strip + strips + struct.pack("<H", 10) + entries + bytes(4)


def test_what_pillow_would_show_wrong_is_rejected(tmp_path):
    png = bytearray(write_picture(tmp_path / "a.png").read_bytes())
    png[-13] ^= 1  # of the check sum before the last chunk
    for content, words in (
        (bytes(png), "bad header checksum in b'IDAT'"),
        (tiff_of(bits=16, planar=2), "channels lie apart"),
    ):
        with pytest.raises(Unusable, match=words):
            read_image(content)
    for way in ((16, 1), (8, 2), (16, 2, 8)):
        image, _ = read_image(tiff_of(*way))
        assert image.size == (2, 2)


def test_a_rotation_is_counted_and_not_applied(tmp_path):
    for orientation in range(10):
        path = write_picture(tmp_path / "a.jpg", 3, orientation=orientation, size=(12, 8))
        image, odd = read_image(path.read_bytes(), ".jpg")
        assert image.size == (12, 8)
        assert odd == ["exif_orientation"] * (2 <= orientation <= 8)


@pytest.mark.parametrize("kind, mode", [(np.uint16, "I;16"), (np.int32, "I"), (np.float32, "F")])
def test_pixels_of_more_than_eight_bits_are_counted_as_cut(kind, mode):
    stored = io.BytesIO()
    Image.fromarray(np.full((4, 4), 300, kind)).save(stored, "TIFF")
    image, odd = read_image(stored.getvalue())
    assert odd == [f"mode {mode} (cut to 0 to 255)"] and image.mode == "RGB"


def test_of_an_image_with_several_frames_the_first_is_taken_and_counted():
    stored = io.BytesIO()
    picture(1).save(stored, "WEBP", lossless=True, save_all=True, append_images=[picture(2)])
    image, odd = read_image(stored.getvalue())
    assert np.array_equal(image, picture(1)) and odd == ["first of several frames"]


def test_what_could_not_be_read_is_tried_again_and_what_is_too_long_is_no_record(
    tmp_path, monkeypatch
):
    raw, read_bytes = small_tree(tmp_path / "raw"), Path.read_bytes

    def refuse(path: Path) -> bytes:
        if path.name == "009.png":
            raise PermissionError(13, "Permission denied")
        return read_bytes(path)

    with monkeypatch.context() as context:
        context.setattr(Path, "read_bytes", refuse)
        assert len(RecordSet.open(convert(raw, tmp_path / "out", *SMALL))) == 29
    assert len(RecordSet.open(convert(raw, tmp_path / "out", *SMALL))) == 30
    with pytest.raises(Unusable, match="1 x 60000 pixels would be 15360000 long"):
        resized(Image.new("RGB", (1, 60000)), 256, 224)


def test_what_is_finished_is_kept_and_what_is_of_no_use_any_more_removed(tmp_path, capsys):
    raw = small_tree(tmp_path / "raw")
    out = convert(raw, tmp_path / "out", *SMALL)
    files = sorted((out / "train").glob("*.h5"))
    expected = {path: path.read_bytes() for path in files}
    files[0].unlink()
    files[1].write_bytes(expected[files[1]][:100])
    (out / "train/train-00000-of-00002.h5").write_bytes(b"somebody else's")
    before = {path: os.stat(path).st_ino for path in files[2:]}
    capsys.readouterr()
    convert(raw, tmp_path / "out", *SMALL)
    said = capsys.readouterr().err
    assert "4 record files, 2 of them kept" in said and "2 record files, 2 of them kept" in said
    assert {path: path.read_bytes() for path in files} == expected
    assert {path: os.stat(path).st_ino for path in before} == before
    convert(raw, tmp_path / "out", *SMALL, "--train-files", "3")
    names = {path.name for path in (out / "train").glob("*.h5")}
    assert names == {f"train-0000{number}-of-00003.h5" for number in range(3)} | {
        "train-00000-of-00002.h5"
    }


def test_images_that_are_read_a_few_at_a_time_give_the_same_files(tmp_path, monkeypatch):
    raw = small_tree(tmp_path / "raw")
    damage(raw / "train")
    flags = (*SMALL, "--max-error-fraction", "0.5")
    whole = contents(convert(raw, tmp_path / "whole", *flags))
    monkeypatch.setattr(convert_module, "_BATCH", 2)
    assert contents(convert(raw, tmp_path / "parts", *flags)) == whole


def test_a_crop_that_is_larger_than_the_resized_image_is_refused(tmp_path, capsys):
    convert(small_tree(tmp_path / "raw"), tmp_path / "out", *SMALL, "--val-size", "9", code=1)
    assert "val_size 9 is more than val_resize 8" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def flat(raw: Path, lines: list[str], encoding: str = "utf-8", first: int = 1) -> Path:
    """A val without class folders, but for a hidden one."""
    small_tree(raw, val=0)
    for number in range(first, first + 4):
        write_picture(raw / f"val/ILSVRC2012_val_{number}.JPEG", number)
    (raw / "val/.snapshot").mkdir()
    if lines:
        (raw / "synset_labels.txt").write_text("\r\n".join(lines), encoding)
    return raw


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_a_flat_val_gets_its_classes_from_the_labels_file(tmp_path, encoding):
    lines = ["class 2 ", "class 0", "class 2", "\tclass 1", " "]
    tree = read_tree(flat(tmp_path, lines, encoding))
    assert [row[0][-6] for row in tree.rows["val"]] == ["2", "4", "1", "3"]
    assert [row[3] for row in tree.rows["val"]] == [0, 1, 2, 2]
    assert tree.notes == []


def test_files_of_a_flat_val_that_are_no_images_are_said(tmp_path):
    raw = flat(tmp_path, ["class 0"] * 4)
    for name in ("ILSVRC2012_val_2.gif", "ILSVRC2012_val_5.JPEG.part"):
        (raw / "val" / name).touch()
    (note, *_) = read_tree(raw).notes
    assert note.startswith("2 files of val/ left out") and "ILSVRC2012_val_2.gif" in note


def vacant(raw: Path) -> None:
    (raw / "train/vacant").mkdir()


def emptied(raw: Path) -> None:
    shutil.rmtree(raw / "train")
    (raw / "train").mkdir()


def loose(raw: Path) -> None:
    flat(raw, ["class 0"] * 4)
    for folder in list((raw / "train").iterdir()):
        for path in folder.iterdir():
            path.rename(raw / "train" / path.name)
        folder.rmdir()


def unnamed(raw: Path) -> None:
    (raw / "train/class 0" / os.fsdecode(b"\xff.png")).touch()


def looped(raw: Path) -> None:
    (raw / "train/class 0/up").symlink_to("..")


def endless(raw: Path) -> None:
    (raw / "train/me").symlink_to("me")


def disjoint(raw: Path) -> None:
    for number in range(3):
        (raw / f"val/class {number}").rename(raw / f"val/{number}")


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda raw: flat(raw, ["a", "b"]), "synset_labels.txt: 2 lines for 4 images"),
        (
            lambda raw: flat(raw, ["class 0", " ", *["class 0"] * 3]),
            "synset_labels.txt: line 2 is blank. Line n is the class of the n-th name",
        ),
        (lambda raw: flat(raw, []), "4 images that lie in no class. Bring synset_labels.txt"),
        (
            lambda raw: vacant(small_tree(raw)),
            "classes without images: vacant .1 of 4.. Bring their images, or remove",
        ),
        (
            lambda raw: write_picture(small_tree(raw) / "train/class 0/a\nb.png"),
            "holds a line break",
        ),
        (
            lambda raw: write_picture(small_tree(raw) / "val/class 0/a\rb.png"),
            "holds a line break",
        ),
        (lambda raw: emptied(small_tree(raw)), "raw/train: holds no images. Expected: train/"),
        (lambda raw: loose(raw), "raw/train: holds no images. Expected: train/"),
        (
            lambda raw: (small_tree(raw) / "val/vacant").mkdir(),
            "raw/val: classes without images: vacant .1 of 4.",
        ),
        (lambda raw: unnamed(small_tree(raw)), "a name that is not UTF-8"),
        (lambda raw: looped(small_tree(raw)), "class 0/up: a link to a folder that it lies in"),
        (lambda raw: endless(small_tree(raw)), "ERROR .*train/me: Too many levels of symbolic"),
        (
            lambda raw: disjoint(small_tree(raw)),
            "share no class: class 0, class 1, class 2 and 0, 1, 2",
        ),
        (lambda raw: flat(raw, ["a"] * 4, encoding="utf-16"), "synset_labels.txt: is not UTF-8"),
        (lambda raw: flat(raw, ["class 0"] * 4, first=8), "the numbers in names differ in length"),
    ],
)
def test_a_folder_that_is_no_image_folder_is_refused(tmp_path, capsys, make, words):
    make(tmp_path / "raw")
    convert(tmp_path / "raw", tmp_path / "out", code=1)
    assert re.search(words, capsys.readouterr().err)


def test_labels_are_of_the_sorted_names_over_train_and_val(tmp_path, capsys):
    raw = small_tree(tmp_path / "raw", classes=2)
    write_picture(raw / "train/only train/1.png", size=(8, 8))
    write_picture(raw / "val/a class/1.png", 1000, size=(8, 8))
    write_picture(raw / "val/class 0/.1/1.gif")
    (raw / "val/class 0" / os.fsdecode(b"\xff.txt")).touch()
    write_picture(raw / "val/loose.png")
    write_picture(raw / "train/.b/1.png", size=(8, 8))
    out = convert(raw, tmp_path / "out", *SMALL)
    said = capsys.readouterr().err
    assert "3 files of val/ left out, as they lie in no class, or" in said
    assert r"loose.png, class 0/\udcff.txt, class 0/.1/1.gif" in said
    assert "1 of 5 classes not in train/: a class" in said
    assert "2 of 5 classes not in val/: .b, only train" in said
    classes = [".b", "a class", "class 0", "class 1", "only train"]
    for split in ("train", "val"):
        assert RecordSet.open(out, split).classes == classes
    assert RecordSet.open(out, "train").counts == [1, 0, 10, 10, 1]
