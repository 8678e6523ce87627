"""HDF5Record where ImageFolder stood."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import numpy as np
import pytest
from torch.utils.data import DataLoader

from millrace.image.records.dataset import HDF5Record
from tests.image.record_sets import write_set
from tests.refusals import refused


def numbers(image) -> int:
    """The id that a test image shows: red is its low byte."""
    assert image.mode == "RGB" and image.size == (6, 4) and image.getpixel((0, 0))[2] == 7
    return image.getpixel((0, 0))[0]


def ten_more(label: int) -> int:
    return label + 10


@pytest.mark.parametrize(
    "method",
    [
        None,
        "fork",
        pytest.param("spawn", marks=pytest.mark.long),
        pytest.param("forkserver", marks=pytest.mark.long),
    ],
)
def test_every_record_comes_once_with_its_label_when_shuffled(tmp_path, method):
    write_set(tmp_path, [5, 5, 4])
    records = HDF5Record(f"{tmp_path}/train/", numbers, ten_more, max_open_files=1)
    assert records[0] == (0, 10)  # a file is open when the workers start
    numbers(HDF5Record(tmp_path / "train")[0][0])
    workers = (
        {"num_workers": 1 + (method == "fork"), "multiprocessing_context": method} if method else {}
    )
    batches = list(DataLoader(records, batch_size=4, shuffle=True, **workers))
    ids, labels = (np.concatenate(column) for column in zip(*batches, strict=True))
    assert sorted(ids) == list(range(14)) and ids.tolist() != list(range(14))
    assert labels.tolist() == [10 + id_ % 3 for id_ in ids]


def test_it_has_what_imagefolder_has(tmp_path):
    write_set(tmp_path, [3, 2])
    records = pickle.loads(pickle.dumps(HDF5Record(tmp_path / "train", numbers)))
    assert records.classes == ["class 0", "class 1", "class 2"]
    assert records.class_to_idx == {"class 0": 0, "class 1": 1, "class 2": 2}
    assert records.targets == [0, 1, 2, 0, 1] and len(records) == 5
    assert [label for _, label in records] == records.targets  # ends by IndexError
    assert records[-1] == records[np.int64(4)] == (4, 1)
    for index in (5, -6):
        with pytest.raises(IndexError):
            records[index]


@pytest.mark.parametrize(
    "given, message",
    [
        ({"root": b"train"}, "root is b'train'. Give a path"),
        ({"root": next(os.scandir(b"/"))}, r"root is <DirEntry b'\w+'>. Give a path"),
        ({"transform": 5}, "transform is 5. Give a function"),
        ({"target_transform": "x"}, "target_transform is 'x'. Give a function"),
    ],
)
def test_what_is_no_path_or_function_is_refused_by_name(tmp_path, given, message):
    write_set(tmp_path, [1])
    with refused(message):
        HDF5Record(**{"root": tmp_path / "train", **given})


def test_a_file_that_is_gone_is_named_with_what_to_do(tmp_path):
    write_set(tmp_path, [1])
    records = HDF5Record(tmp_path / "train")
    os.remove(records.records.path(0))
    with refused(r"\.h5: is missing\. Bring it, or make the set again"):
        records[0]


@pytest.mark.parametrize("most", [1, 5])
def test_it_has_as_many_files_open_as_it_may(tmp_path, most):
    write_set(tmp_path, [1] * 6)
    records = HDF5Record(tmp_path / "train", numbers, max_open_files=most)
    assert [number for number, _ in records] == list(range(6))
    files = [each.resolve() for each in Path("/proc/self/fd").iterdir()]
    assert sum(file.is_relative_to(tmp_path) for file in files) == most
