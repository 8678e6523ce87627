"""Batches of records: crops by address, damaged images, the boundary to the model."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from millrace.common.loading.loader import BatchLoader
from millrace.common.loading.plan import BatchRequest
from millrace.image.records.record_set import RecordSet
from millrace.image.training import batches as batches_module
from millrace.image.training.augment import crop, random_crops
from millrace.image.training.batches import RecordBatches, normalised
from millrace.image.training.options import TrainOptions
from millrace.image.training.plan import BlockPlan, Shape
from millrace.image.training.task import ImageTask
from tests.image.record_sets import write_records, write_set
from tests.refusals import refused


def batches(
    records: RecordSet, size: int, workers: int, epoch: int = 0, augment: str = "crop_flip"
):
    dataset = RecordBatches(records, records.folder.parent, size, 12, augment, 1)
    dataset.plan = BlockPlan(len(records), 1, {1: Shape(6, max(workers, 1), 2)}, epoch)
    loader = BatchLoader(dataset, workers)
    parts = list(loader)
    loader.close()
    order = np.argsort(np.concatenate([part.ids for part in parts]))
    images = np.concatenate([part.images.numpy() for part in parts])[order]
    return images, np.concatenate([part.labels.numpy() for part in parts])[order]


def test_a_record_is_cropped_the_same_by_any_worker_and_differently_in_the_next_epoch(tmp_path):
    records = write_set(tmp_path, [9, 8])
    first, labels = batches(records, 5, workers=0)
    assert np.array_equal(batches(records, 5, workers=2)[0], first)
    assert labels.tolist() == [number % 3 for number in range(17)]
    # Every pixel holds the id: red its low byte.
    assert first[:, 2, 2, 0].tolist() == list(range(17)) and (first[..., 2] == 7).all()


def test_crops_are_random_resized_crops():
    sizes = np.tile([256, 200], (4000, 1))
    boxes, flips = random_crops(1, 2, np.arange(4000), sizes)
    width, height = boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1]
    share, ratio = width * height / (256 * 200), width / height
    assert boxes.min() >= 0 and boxes[:, 2].max() <= 256 and boxes[:, 3].max() <= 200
    # The last place is drawn too, at the right and at the lower edge.
    assert ((boxes[:, 0] > 0) & (boxes[:, 2] == 256)).any()
    assert ((boxes[:, 1] > 0) & (boxes[:, 3] == 200)).any()
    assert 0.075 < share.min() < 0.1 and share.max() > 0.9 and 0.4 < share.mean() < 0.55
    assert ratio.min() > 0.73 and ratio.max() < 1.36
    assert abs(flips.mean() - 0.5) < 0.03
    # Ratios are even in their logarithms; those of boxes that fit whatever their ratio is.
    assert abs(np.log(ratio[share < 0.5]).mean()) < 0.01
    # Place, size and side are drawn one by one.
    left, top = boxes[:, 0] / (257 - width), boxes[:, 1] / (201 - height)
    assert abs(np.corrcoef(left, top)[0, 1]) < 0.1
    assert abs(share[flips].mean() - share[~flips].mean()) < 0.03
    assert (random_crops(1, 2, np.array([7]), sizes[:1])[0] == boxes[7]).all()
    assert (random_crops(1, 3, np.array([7]), sizes[:1])[0] != boxes[7]).any()
    # Too long an image is cropped in its middle.
    boxes, _ = random_crops(1, 0, np.arange(2), np.array([[5000, 20], [20, 5000]]))
    assert boxes.tolist() == [[2486, 0, 2513, 20], [0, 2486, 20, 2513]]
    # No box is empty.
    assert (random_crops(1, 0, np.arange(99), np.ones((99, 2), int))[0] == [0, 0, 1, 1]).all()


def test_a_box_is_made_larger_evenly_and_of_its_own_pixels():
    image = np.full((4, 6, 3), 255, np.uint8)
    image[1:3, 2:4] = [[[0], [100]]] * 2
    cropped = crop(image, np.array([2, 1, 4, 3]), 4, flip=False)
    assert cropped.tolist() == [[[value] * 3 for value in (0, 25, 75, 100)]] * 4


@pytest.mark.parametrize("augment, mirrored", [("crop", 0), ("crop_flip", 20)])
def test_crops_are_mirrored_if_that_is_asked_for(tmp_path, augment, mirrored):
    columns = np.arange(40, dtype=np.uint8)[None, None, :, None]
    images = np.broadcast_to(columns, (40, 30, 40, 3)).copy()
    given, _ = batches(write_images(tmp_path, images), 20, 0, augment=augment)
    steps = np.diff(given[:, 0, :, 0].astype(int), axis=1)
    rising, falling = (steps >= 0).all(axis=1), (steps <= 0).all(axis=1)
    assert (rising != falling).all() and abs(falling.sum() - mirrored) <= 12 * bool(mirrored)


def write_images(folder: Path, images: np.ndarray) -> RecordSet:
    """A set of one file, of one class."""
    count = len(images)
    file = write_records(folder / "train" / "train-0.h5", images, [0] * count, range(count))
    return RecordSet(folder / "train", "train", ["a"], [file], [count], images.shape[1:3])


def two_images(height: int, width: int) -> np.ndarray:
    """Two images of noise."""
    return np.random.default_rng(1).integers(0, 256, (2, height, width, 3), np.uint8)


def test_crops_are_those_of_the_seed_and_the_epoch(tmp_path):
    records = write_images(tmp_path, two_images(30, 40))
    records.write()
    shutil.copytree(tmp_path / "train", tmp_path / "train_1")

    def loaded(seed: int, epoch: int) -> bytes:
        dataset = RecordBatches(records, tmp_path, 8, 12, "crop", seed)
        batch = dataset.load(BatchRequest(0, np.arange(2), following=None, epoch=epoch))
        return batch.images.numpy().tobytes()

    addresses = [(seed, epoch) for seed in (1, 2) for epoch in (0, 1)]
    assert len({loaded(*address) for address in addresses}) == 4
    assert loaded(1, 0) == loaded(1, 0)


def test_without_random_crops_the_middle_is_given(tmp_path):
    images = two_images(9, 12)
    records = write_images(tmp_path, images)
    for size in (5, 6, 9):
        given, _ = batches(records, size, 0, augment="none")
        box = (round((12 - size) / 2), round((9 - size) / 2))
        whole = [Image.fromarray(image) for image in images]
        expected = [image.crop((*box, box[0] + size, box[1] + size)) for image in whole]
        assert np.array_equal(given, np.stack(expected))


def test_a_reader_goes_on_with_the_files_of_the_next_epoch_and_leaves_none_open(tmp_path):
    records = write_set(tmp_path, [6])
    shutil.copytree(tmp_path / "train", tmp_path / "train_1")
    dataset = RecordBatches(records, tmp_path, 4, 12)

    def opened_by(epoch: int, following: np.ndarray | None) -> set[str]:
        """The folders of the record files that are open after a batch."""
        dataset.load(BatchRequest(0, np.arange(3), following=following, epoch=epoch))
        files = [each.resolve() for each in Path("/proc/self/fd").iterdir()]
        return {file.parent.name for file in files if file.is_relative_to(tmp_path)}

    # Of an epoch that is left before its end no reader was told.
    assert opened_by(0, np.arange(3)) == {"train"}
    assert opened_by(1, np.arange(3)) == {"train_1"}
    assert opened_by(1, None) == set()


def test_batches_that_wait_need_room_for_their_pixels(tmp_path, monkeypatch):
    needed = []
    monkeypatch.setattr(batches_module, "require_room", needed.append)
    dataset = RecordBatches(write_set(tmp_path, [9, 8]), tmp_path, 4, 12)
    dataset.plan = BlockPlan(17, 1, {1: Shape(6)})
    for per_worker in (5, 1):
        assert dataset.new_slots(2, per_worker) is None
    assert needed == [2 * 3 * 6 * 4 * 4 * 3, 2 * 6 * 4 * 4 * 3]


def test_middles_of_records_that_are_smaller_than_vals_are_refused(tmp_path):
    write_set(tmp_path, [3])
    write_set(tmp_path, [2], "val", size=(8, 8))
    with refused("train: the records of val have 8 pixels, of train 4"):
        ImageTask(TrainOptions(augment="none"), tmp_path, tmp_path)
    assert ImageTask(TrainOptions(), tmp_path, tmp_path).image_size == 8


def test_the_model_sees_scaled_rgb_channels_first():
    image = torch.tensor([255, 0, 51], dtype=torch.uint8).expand(2, 4, 4, 3)
    expected = [(1 - 0.485) / 0.229, -0.456 / 0.224, (0.2 - 0.406) / 0.225]
    assert normalised(image)[1, :, 2, 3].tolist() == pytest.approx(expected, abs=1e-6)
