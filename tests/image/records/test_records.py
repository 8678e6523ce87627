"""Record files, their index and their reader."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path

import h5py
import numpy as np
import pytest

from millrace.common.errors import MillraceError
from millrace.image.records.deal import FilePlan, fill_gaps
from millrace.image.records.folder import validation_folder
from millrace.image.records.reader import RecordReader
from millrace.image.records.record_file import multiset_digest, read_facts, record_writer
from millrace.image.records.record_set import RecordSet, check_classes
from tests.image.record_sets import images_of, write_records, write_set


def test_what_is_written_is_read_in_slices_across_the_files(tmp_path):
    written = write_set(tmp_path, [5, 5, 4])
    records = RecordSet.open(f"{tmp_path}/", "train/")
    assert records == written and len(records) == 14 and records.lengths.tolist() == [5, 5, 4]
    assert [records.locate(index) for index in (0, 4, 5, 13)] == [(0, 0), (0, 4), (1, 0), (2, 3)]
    for index in (14, -1):
        with pytest.raises(IndexError):
            records.locate(index)
    reader = RecordReader(records, max_open_files=1)
    for file, start, count, ids in (
        (0, 1, 3, [1, 2, 3]),
        (2, 2, 9, [12, 13]),
        (1, 5, 1, []),
        (0, 0, 1, [0]),
    ):
        images, labels, got = reader.read(file, start, count)
        assert got.tolist() == ids and labels.tolist() == [id_ % 3 for id_ in ids]
        assert np.array_equal(images, images_of(np.array(ids, int)))
    for start, count in ((-1, 2), (6, 1)):
        with pytest.raises(IndexError, match=f"records {start} to"):
            reader.read(0, start, count)


def test_a_read_that_gives_less_goes_on_where_it_ended(tmp_path, monkeypatch):
    reader = RecordReader(write_set(tmp_path, [9]))
    preadv = os.preadv
    # An image has 72 bytes.
    monkeypatch.setattr(
        os, "preadv", lambda file, views, place: preadv(file, [views[0][:50]], place)
    )
    images, _, ids = reader.read(0, 2, 5)
    assert np.array_equal(images, images_of(ids))


def test_a_file_that_is_written_in_pieces_is_the_same_bytes(tmp_path):
    content = images_of(np.arange(6))
    whole = write_records(tmp_path / "a/x.h5", content, [0] * 6, range(6))
    with record_writer(tmp_path / "b/x.h5", 6, (4, 6)) as writer:
        writer.append(content[:2], [0, 0], [0, 1])
        writer.append(content[2:], [0] * 4, range(2, 6))
    assert (
        writer.file == whole
        and (tmp_path / "a/x.h5").read_bytes() == (tmp_path / "b/x.h5").read_bytes()
    )
    assert read_facts(tmp_path / "b/x.h5") == {"digest": whole.digest}
    assert [path.name for path in (tmp_path / "b").iterdir()] == ["x.h5"]


def test_the_digest_of_a_file_is_of_every_image_label_and_id(tmp_path):
    columns = np.arange(15).reshape(3, 5)
    digests = set()
    for place in range(16):  # the last one changes nothing
        images, labels, ids = np.where(columns == place, 200, columns)
        file = write_records(tmp_path / "x.h5", images_of(images), labels, ids)
        digests.add(file.digest)
    assert len(digests) == 16


def test_every_setting_of_the_pixels_and_every_image_is_part_of_a_plans_digest():
    pixels = {"layout": "fixed", "exif": "ignore", "max_pixels": 9, "resize": 8, "crop": 7}
    rows = [("a/1.png", 10, 11, 0), ("b/2.png", 20, 21, 1)]
    plan = FilePlan("train-00000-of-00002.h5", 0, 2, rows)
    changed = [pixels | {key: "other"} for key in pixels]
    changed += [{key: value for key, value in pixels.items() if key != left} for left in pixels]
    digests = [plan.digest(each) for each in (pixels, *changed)]
    for change in (
        {"name": "x"},
        {"first": 1},
        {"step": 1},
        {"rows": rows[:1]},
        {"rows": rows[::-1]},
    ):
        digests.append(dataclasses.replace(plan, **change).digest(pixels))
    for place in range(4):
        row = (*rows[1][:place], "7" if place == 0 else 7, *rows[1][place + 1 :])
        digests.append(dataclasses.replace(plan, rows=[rows[0], row]).digest(pixels))
    assert len({*digests}) == len(digests) == 1 + 10 + 5 + 4
    assert FilePlan.from_dict(plan.as_dict()).digest(dict(reversed(pixels.items()))) == digests[0]


def test_an_index_is_put_in_its_place_whole_and_last(tmp_path, monkeypatch):
    records = write_set(tmp_path, [3, 2])
    placed = []
    replace = os.replace

    def noted(partial, path):
        placed.append(path.name)
        replace(partial, path)

    monkeypatch.setattr(os, "replace", noted)
    records.write()
    assert placed == ["length.npy", "records.json"]


def test_gaps_are_filled_by_the_last_ones_and_others_stay():
    a, b, c = (("a", 1, 1, 0), ("b", 1, 1, 0), ("c", 1, 1, 0))
    assert fill_gaps([None, a, b, None, c, None, None]) == [c, a, b]


def test_a_writer_that_fails_leaves_nothing(tmp_path):
    with (
        pytest.raises(ValueError, match="an image is float32"),
        record_writer(tmp_path / "x.h5", 2, (4, 6)) as writer,
    ):
        writer.append(np.zeros((2, 4, 6, 3), np.float32), [0, 0], [0, 1])
    assert not list(tmp_path.iterdir())


def refused(root: Path, words: str) -> None:
    """Train is refused in these words."""
    with pytest.raises(MillraceError, match=words):
        RecordSet.open(root)


def published(path, name="train-00000-of-00001.h5", **datasets):
    path.mkdir(parents=True, exist_ok=True)
    with h5py.File(path / name, "w") as h5:
        for key, value in datasets.items():
            h5.create_dataset(key, **value if isinstance(value, dict) else {"data": value})


@pytest.mark.parametrize("chunks", [None, (1, 4, 6, 3), (3, 2, 6, 1), True])
def test_files_of_others_are_read_in_any_chunking_and_their_ids_count_up(tmp_path, chunks):
    for number in (0, 1):
        images = {"data": images_of(np.arange(7) + 7 * number), "chunks": chunks}
        datasets = {
            "images": images,
            "labels": np.arange(7, dtype=np.uint16) % 2,
            "ids": [b"of another kind"] * 7,
        }
        published(tmp_path / "train", f"train-{number}.h5", **datasets)
    assert read_facts(tmp_path / "train/train-0.h5") == {}
    records = RecordSet.open(tmp_path)
    assert records.classes == ["0", "1"] and records.counts == [8, 6] and not records.has_index
    assert records.ids_digest == multiset_digest([np.arange(14)])
    for out in (None, np.zeros((8, 4, 6, 3), np.uint8)):
        images, _, ids = RecordReader(records).read(1, 2, 3, out)
        assert ids.tolist() == [9, 10, 11] and np.array_equal(images, images_of(ids))
    assert np.shares_memory(images, out)


@pytest.mark.parametrize(
    "names, words", [((), "neither val/ nor"), (("val", "validation"), "both val/ and")]
)
def test_one_validation_set_of_either_name_is_needed(tmp_path, names, words):
    (tmp_path / "one/validation").mkdir(parents=True)
    assert validation_folder(tmp_path / "one") == "validation"
    for name in names:
        (tmp_path / name).mkdir()
    with pytest.raises(MillraceError, match=words):
        validation_folder(tmp_path)


PIXELS = images_of(np.arange(2))


@pytest.mark.parametrize(
    "datasets, words",
    [
        (
            {"images": PIXELS.astype(np.float32), "labels": [0, 1]},
            "float32 .* not uint8 .*create_records",
        ),
        ({"images": PIXELS.reshape(2, -1), "labels": [0, 1], "heights": [4, 4]}, "not uint8"),
        ({"images": PIXELS.transpose(0, 3, 1, 2), "labels": [0, 1]}, r"not uint8 \(N, H, W, 3\)"),
        (
            {"images": {"shape": (2,), "dtype": h5py.vlen_dtype(np.uint8)}, "labels": [0, 1]},
            "not uint8",
        ),
        ({"images": {"shape": PIXELS.shape, "dtype": "u1"}, "labels": [0, 1]}, "not written"),
        (
            {"images": {"shape": PIXELS.shape, "dtype": "u1", "chunks": True}, "labels": [0, 1]},
            "not written to its end",
        ),
        ({"images": PIXELS, "labels": [0]}, "`labels` is int64"),
        ({"images": PIXELS, "labels": [0.0, 1.0]}, "`labels` is float64"),
        ({"images": PIXELS}, "the file holds images"),
        ({"images": PIXELS, "labels": [0, -1]}, "has the label -1"),
        ({"images/1": PIXELS, "labels": [0, 1]}, "the file holds images, labels"),
        ({"images": PIXELS, "labels": {"shape": (2,), "dtype": "i8"}}, "`labels` was not written"),
        (
            {"images": PIXELS, "labels": [0, 1 << 40]},
            "1099511627776. Give labels from 0 to 999,999",
        ),
        ({"images": {"data": h5py.Empty("u1")}, "labels": [0, 1]}, "`images` is uint8 None"),
    ],
)
def test_layouts_that_are_not_read_are_refused_with_the_remedy(tmp_path, datasets, words):
    published(tmp_path / "train", **datasets)
    refused(tmp_path, words)


def write_some_chunks(h5: h5py.File, folder: Path) -> None:
    images = h5.create_dataset("images", PIXELS.shape, np.uint8, chunks=(1, 4, 6, 3))
    images[0] = PIXELS[0]


def link_out(h5: h5py.File, folder: Path) -> None:
    with h5py.File(folder / "other.hdf5", "w") as other:
        other["images"] = PIXELS
    h5["images"] = h5py.ExternalLink("other.hdf5", "images")


def link_in_a_circle(h5: h5py.File, folder: Path) -> None:
    h5["images"] = h5py.SoftLink("/images")


def store_outside(h5: h5py.File, folder: Path) -> None:
    (folder / "short.raw").write_bytes(b"too few bytes")  # the rest would be 0
    place = [(str(folder / "short.raw"), 0, h5py.h5f.UNLIMITED)]
    h5.create_dataset("images", PIXELS.shape, np.uint8, external=place)


def pack_by_a_filter_that_is_missing(h5: h5py.File, name: bytes, shape: tuple[int, ...]) -> None:
    options = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    options.set_chunk(shape)
    options.set_filter(256, h5py.h5z.FLAG_OPTIONAL)  # a number for tests of one's own
    space = h5py.h5s.create_simple(shape)
    packed = h5py.h5d.create(h5.id, name, h5py.h5t.STD_U8LE, space, options)
    packed.write_direct_chunk((0,) * len(shape), b"packed")


def lack_the_filter(h5: h5py.File, folder: Path) -> None:
    pack_by_a_filter_that_is_missing(h5, b"images", PIXELS.shape)


def lack_the_filter_of_labels(h5: h5py.File, folder: Path) -> None:
    h5["images"] = PIXELS
    del h5["labels"]
    pack_by_a_filter_that_is_missing(h5, b"labels", (2,))


def lose_the_names(h5: h5py.File, folder: Path) -> None:
    h5.close()
    path = folder / "train-00000-of-00001.h5"
    path.write_bytes(path.read_bytes().replace(b"SNOD", b"lost"))


def become_a_pipe(h5: h5py.File, folder: Path) -> None:
    h5.close()
    (folder / "train-00000-of-00001.h5").unlink()
    os.mkfifo(folder / "train-00000-of-00001.h5")


@pytest.mark.parametrize(
    "make, words",
    [
        (write_some_chunks, "not written to its end"),
        (link_out, r"the file holds labels \(links do not count"),
        (link_in_a_circle, "the file holds labels"),
        (store_outside, "`images` was not written to its end, or lies in other files"),
        (lack_the_filter, "packed by filter 256, which is not installed: set HDF5_PLUGIN_PATH"),
        (lack_the_filter_of_labels, "packed by filter 256, which is not installed"),
        (lose_the_names, "cannot be read .*signature.* Write it again, or move it away"),
        (become_a_pipe, "cannot be read .no regular file, but a .*. Write it again, or move"),
    ],
)
def test_images_that_do_not_lie_in_the_file_or_cannot_be_unpacked_are_refused(
    tmp_path, make, words
):
    published(tmp_path / "train", labels=[0, 1])
    with h5py.File(tmp_path / "train/train-00000-of-00001.h5", "a") as h5:
        make(h5, tmp_path / "train")
    refused(tmp_path, words)


def test_a_length_file_that_is_missing_is_counted_and_one_that_is_wrong_is_refused(tmp_path):
    published(tmp_path / "train", images=PIXELS, labels=[0, 1])
    assert RecordSet.open(tmp_path).lengths.tolist() == [2]
    np.save(tmp_path / "train/length.npy", [3])
    refused(tmp_path, r"length.npy: says \[3\]..., the files hold \[2\]")
    (tmp_path / "train/length.npy").write_bytes(b"")
    refused(tmp_path, r"length.npy: says \['nothing that can be read'\]")

    # Also beside an index.
    indexed = write_set(tmp_path / "own", [3, 2])
    np.save(indexed.folder / "length.npy", [2, 3])
    refused(tmp_path / "own", r"says \[2, 3\]\.\.\., the files hold \[3, 2\]")


@pytest.mark.parametrize(
    "names, words",
    [
        (["0-of-3", "1-of-3"], r"2 record files that are .* \(train-0-of-3.h5\)"),
        (["0-of-2", "1-of-2", "0-of-1"], r"3 record files .* \(train-0-of-1.h5\)"),
        (["0-of-2", "1-of-2", "1-of-2 copy"], "3 record files that are not one whole set"),
    ],
)
def test_files_of_others_that_are_no_whole_set_are_refused(tmp_path, names, words):
    for name in names:
        published(tmp_path / "train", f"train-{name}.h5", images=PIXELS, labels=[0, 1])
    refused(tmp_path, words)


def test_sets_whose_labels_mean_other_classes_are_refused(tmp_path):
    for folder, labels in (("train", [0, 1]), ("val", [1002, 1003])):
        published(tmp_path / folder, images=PIXELS, labels=labels)
    with pytest.raises(MillraceError, match=r"share no label \(0 to 1 and 1002 to 1003\)"):
        check_classes(RecordSet.open(tmp_path), RecordSet.open(tmp_path, "val"))
    published(tmp_path / "val", images=PIXELS, labels=[1, 2])
    with pytest.raises(MillraceError, match="labels of val go up to 2, train has 2"):
        check_classes(RecordSet.open(tmp_path), RecordSet.open(tmp_path, "val"))


@pytest.mark.parametrize(
    "change, words",
    [
        (
            {"version": 2},
            "records.json: was written by another version .* Convert again",
        ),
        ({"layout": "encoded", "size": None}, "by another version .*'layout': 'encoded'"),
        ({"classes": ["a", "b"]}, "has labels from 0 to 2, of 2 classes"),
        ({"size": [6, 4]}, r"the index says 3 records of \(6, 4\) pixels .* has 3 of \(4, 6\)"),
    ],
)
def test_an_index_that_does_not_fit_is_refused(tmp_path, change, words):
    path = write_set(tmp_path, [3, 2]).folder / "records.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(MillraceError, match=words):
        RecordReader(RecordSet.open(tmp_path)).read(0, 0, 1)


def test_files_of_others_of_different_sizes_are_refused(tmp_path):
    published(tmp_path / "train", "a.h5", images=PIXELS, labels=[0, 1])
    published(tmp_path / "train", "b.h5", images=PIXELS[:, :3], labels=[0, 1])
    refused(tmp_path, "holds images of different sizes")


def test_splits_of_other_classes_are_refused(tmp_path):
    train, val = write_set(tmp_path, [6]), write_set(tmp_path, [6], "val")
    check_classes(train, val)
    for others in (["class 0", "class 2", "class 1"], ["class 0", "class 1", "class 2", "class 3"]):
        with pytest.raises(MillraceError, match=r"have 3 and [34] classes that differ"):
            check_classes(train, dataclasses.replace(val, classes=others))
    # Files of others have numbers for names.
    check_classes(train, dataclasses.replace(val, classes=["0", "1", "2"], has_index=False))
    check_classes(dataclasses.replace(train, classes=["0", "1", "2"], has_index=False), val)


def test_our_own_files_without_their_index_or_each_other_are_not_finished(tmp_path):
    folder = write_set(tmp_path, [2, 2]).folder
    (folder / "train-00001-of-00002.h5").rename(tmp_path / "away")
    refused(tmp_path, "1 of its 2 files are missing: train-00001")
    (folder / "records.json").unlink()
    refused(tmp_path, "is missing: these records are not finished")


@pytest.mark.parametrize("size", [3, 5])
def test_a_file_that_was_replaced_is_refused(tmp_path, size):
    records = write_set(tmp_path, [4, 4])
    with open(records.path(0), "ab") as handle:
        handle.write(b"more")
    write_records(records.path(1), images_of(np.arange(size)), [0] * size, range(size))
    for file in (0, 1):
        with pytest.raises(MillraceError, match="the index says 4 records"):
            RecordReader(records).read(file, 0, 1)
    for labels, words in (([0, 1, 2, 3], "from 0 to 3"), ([-1, 0, 1, 2], "from -1 to 2")):
        write_records(records.path(1), images_of(np.arange(4)), labels, range(4))
        with pytest.raises(MillraceError, match=f"labels {words}, of 3 classes"):
            RecordReader(records).read(1, 0, 1)
    # One that differs from it by labels alone: of another conversion, or written again meanwhile.
    write_records(records.path(1), images_of(np.arange(4, 8)), [0, 1, 2, 0], range(4, 8))
    with pytest.raises(MillraceError, match=r"not the file that the index says.* Open the"):
        RecordReader(records).read(1, 0, 1)


def test_a_file_that_was_cut_is_an_error_and_no_crash(tmp_path):
    records = write_set(tmp_path, [400])
    reader = RecordReader(records)
    reader.read(0, 0, 1)
    with open(records.path(0), "r+b") as handle:
        handle.truncate(3000)
    with pytest.raises(MillraceError, match="ends before its records"):
        reader.read(0, 390, 10)
    with pytest.raises(MillraceError, match="damaged since it was made"):
        RecordReader(records).read(0, 390, 10)


def test_a_damaged_chunk_is_an_error_that_names_the_file(tmp_path):
    images = {"data": PIXELS, "chunks": (1, 4, 6, 3), "compression": "gzip"}
    published(tmp_path / "train", "train.h5", images=images, labels=[0, 1])
    with h5py.File(tmp_path / "train/train.h5", "a") as h5:
        h5["images"].id.write_direct_chunk((1, 0, 0, 0), b"damage")
    reader = RecordReader(RecordSet.open(tmp_path))
    with pytest.raises(MillraceError, match=r"train.h5: cannot be read \(.*make the set again"):
        reader.read(0, 0, 2)


def test_the_digest_of_ids_counts_each_and_ignores_order_and_blocks():
    digest = multiset_digest([np.arange(5), np.arange(5, 9)])
    assert multiset_digest([np.arange(9)[::-1]]) == digest
    for others in ([0, 0, *range(2, 9)], range(8), [*range(9), 8]):
        assert multiset_digest([np.array(others)]) != digest
