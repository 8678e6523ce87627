"""One epoch: each record once, the same bytes when made again, memory as said."""

from __future__ import annotations

import dataclasses
import itertools
import shutil

import h5py
import numpy as np
import pytest

from millrace.image.producer import epochs, production, shuffle
from millrace.image.producer.shuffle import EpochMaker
from millrace.image.records.reader import RecordReader
from millrace.image.records.record_set import RecordSet
from tests.files import contents
from tests.image.record_sets import images_of, write_records, write_set
from tests.refusals import refused

LENGTHS = [8, 9, 8, 8, 9, 8, 8]


def nothing(text: str) -> None:
    """Of a maker's progress."""


def read_ids(root, epoch) -> list[np.ndarray]:
    records = RecordSet.open(root, epochs.folder_of(root, epoch).name)
    reader = RecordReader(records)
    return [reader.ids(file) for file in range(len(records.files))]


@pytest.mark.parametrize("pool", [1, 3, 7])
def test_an_epoch_holds_each_record_once_and_has_the_same_bytes_when_made_again(tmp_path, pool):
    source = write_set(tmp_path, LENGTHS)
    maker = EpochMaker(source, tmp_path, pool, seed=5)
    maker.make(2, nothing)
    made, ids = RecordSet.open(tmp_path, "train_2"), read_ids(tmp_path, 2)
    assert (
        np.array_equal(np.sort(np.concatenate(ids)), np.arange(58))
        and made.ids_digest == source.ids_digest
    )
    assert sorted(made.lengths) == sorted(LENGTHS) and (made.epoch, made.pool) == (2, pool)
    files_of = [
        {int(np.searchsorted(source.starts, number, "right")) - 1 for number in part}
        for part in ids
    ]
    assert all(len(files) <= pool for files in files_of) and set.union(*files_of) == set(range(7))
    # Images and labels came along.
    reader, before = RecordReader(made), RecordReader(source)
    for file in range(7):
        images, labels, numbers = reader.read(file, 0, 100)
        assert np.array_equal(labels, numbers % 3)
        for image, number in zip(images, numbers, strict=True):
            at, row = source.locate(int(number))
            assert np.array_equal(image, before.read(at, row, 1).images[0])
    content = contents(tmp_path / "train_2")
    assert epochs.remove(tmp_path, 2)
    EpochMaker(RecordSet.open(tmp_path, "train"), tmp_path, pool, seed=5).make(2, nothing)
    assert content == contents(tmp_path / "train_2")
    maker.make(3, nothing)
    assert np.concatenate(read_ids(tmp_path, 3)).tolist() != np.concatenate(ids).tolist()


def test_each_epoch_draws_other_pools_and_another_order_within_them():
    lengths = np.full(12, 5)
    epochs_of = {
        (seed, epoch): list(shuffle.groups(lengths, 3, seed, epoch))
        for seed in (1, 2)
        for epoch in (1, 2, 3)
    }
    pools = {str([sorted(files.tolist()) for files, _ in groups]) for groups in epochs_of.values()}
    orders = [str(rows.tolist()) for groups in epochs_of.values() for _, rows in groups]
    assert len(pools) == len(epochs_of) and len({*orders}) == len(orders) == 6 * 4


def test_an_epoch_is_told_by_what_lies_on_the_disk(tmp_path):
    source = write_set(tmp_path, [8] * 6)

    def damage(text: str) -> None:
        """Put a whole file in the place of another one, when both are written."""
        if text == "makes epoch 1: 3 of 6 files":
            (folder,) = tmp_path.glob(".train_1.*.partial")
            shutil.copy(folder / "train-00000-of-00006.h5", folder / "train-00001-of-00006.h5")

    with refused("train_1: does not hold each record once"):
        EpochMaker(source, tmp_path, 3, seed=1).make(1, damage)
    assert [path.name for path in tmp_path.iterdir()] == ["train"]


def test_files_of_other_programs_without_index_and_ids_are_shuffled_too(tmp_path):
    (tmp_path / "train").mkdir()
    for number in range(3):
        with h5py.File(tmp_path / f"train/train-0000{number}-of-00003.h5", "w") as h5:
            h5["images"], h5["labels"] = (
                images_of(np.arange(number * 4, number * 4 + 4)),
                np.zeros(4, np.int64),
            )
    EpochMaker(RecordSet.open(tmp_path, "train"), tmp_path, 3, seed=0).make(1, nothing)
    images, _, ids = RecordReader(RecordSet.open(tmp_path, "train_1")).read(0, 0, 4)
    assert np.array_equal(images, images_of(ids))
    assert np.array_equal(np.sort(np.concatenate(read_ids(tmp_path, 1))), np.arange(12))


def test_an_epoch_is_of_one_set_of_records_seed_pool_and_number(tmp_path):
    source = write_set(tmp_path, LENGTHS)
    other = write_set(tmp_path / "other", LENGTHS)
    ids = np.arange(LENGTHS[0])
    file = write_records(other.path(0), images_of(ids + 1), ids % 3, ids)
    changed = dataclasses.replace(other, files=[file, *other.files[1:]])
    makers = [
        (source, 3, 1, 1),
        (source, 2, 1, 1),
        (source, 3, 2, 1),
        (source, 3, 1, 2),
        (changed, 3, 1, 1),
    ]
    marks = [
        EpochMaker(records, tmp_path, pool, seed).mark(epoch)
        for records, pool, seed, epoch in makers
    ]
    assert all(one != other for one, other in itertools.combinations(marks, 2))
    assert EpochMaker(source, tmp_path, 3, 1).mark(1) == marks[0]


def test_records_whose_ids_are_not_those_of_their_index_are_refused(tmp_path):
    source = dataclasses.replace(write_set(tmp_path, LENGTHS), ids_digest="58-0")
    with refused(r"train: its files hold ids .* the index says 58-0"):
        EpochMaker(source, tmp_path, 3, seed=1)


def test_a_folder_of_somebody_else_and_a_stop_leave_nothing_half_made(tmp_path):
    maker = EpochMaker(write_set(tmp_path, LENGTHS), tmp_path, 2, seed=0)
    (tmp_path / "train_1").mkdir()
    with refused("train_1: is in the way of an epoch"):
        maker.make(1, nothing)

    def stop(text: str) -> None:
        if "4 of 7" in text:
            raise SystemExit

    with pytest.raises(SystemExit):
        maker.make(2, stop)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["train", "train_1"]
    assert not epochs.remove(tmp_path, 1) and not epochs.remove(tmp_path, 0)


def test_memory_that_does_not_suffice_is_refused_with_what_fits(tmp_path):
    records = write_set(tmp_path, LENGTHS)
    sizes = shuffle.pool_bytes(records)
    # The largest files, as any may come together.
    assert sizes.tolist() == [72 * most for most in (9, 18, 26, 34, 42, 50, 58)]
    assert production.check_memory(records, 100, int(sizes[-1])) == 7
    with refused("Give --shuffle_pool 3, the most that fits"):
        production.check_memory(records, 4, int(sizes[2]))
    with refused("Not one file fits"):
        production.check_memory(records, 4, 100)


def test_only_what_a_producer_left_half_made_is_swept_away(tmp_path):
    left = [".train_1.0a.partial", ".train_12.b.removed"]
    others = [
        ".train_0.a.partial",
        ".train_x.a.partial",
        ".train_1.a",
        "train_1",
        ".val_1.a.partial",
    ]
    for name in (*left, *others):
        (tmp_path / name).mkdir()
    epochs.sweep(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(others)
