"""Batches of an epoch's records: read in contiguous blocks and cropped where this runs, then
normalised on the device by the mean and deviation of each colour."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from millrace.common.errors import MillraceError
from millrace.common.loading.bad_samples import BadSample
from millrace.common.loading.plan import BatchRequest, Plan
from millrace.common.loading.slots import BatchSlots, require_room
from millrace.image.producer import epochs
from millrace.image.records.reader import RecordReader
from millrace.image.records.record_set import RecordSet
from millrace.image.training.augment import crop, random_crops

_JUDGED = 8  # images of a batch, at least: fewer may all be black
BLOCK = 64  # records that are read at once
# Of ImageNet's pixels in [0, 1], red, green, blue.
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)


@dataclass
class Batch:
    """Images uint8 (n, size, size, 3), RGB; labels int64 (n,); ids int64 of the records."""

    step: int
    epoch: int
    images: torch.Tensor
    labels: torch.Tensor
    ids: np.ndarray
    planned: int
    bad: list[BadSample]
    filler: bool = False

    def pin_memory(self) -> Batch:
        return replace(self, images=self.images.pin_memory(), labels=self.labels.pin_memory())

    def to(self, device: torch.device, non_blocking: bool = False) -> Batch:
        images = self.images.to(device, non_blocking=non_blocking)
        labels = self.labels.to(device, non_blocking=non_blocking)
        return replace(self, images=images, labels=labels)


def normalised(images: torch.Tensor) -> torch.Tensor:
    """float32 (n, 3, height, width) of uint8 (n, height, width, 3) RGB: scaled to [0, 1], then by
    ImageNet's mean and deviation. `RecordBatches.check` has refused what is no such batch."""
    mean = torch.tensor(MEAN, device=images.device)
    std = torch.tensor(STD, device=images.device)
    scaled = images.float() / 255
    channels_last = (scaled - mean) / std
    return channels_last.permute(0, 3, 1, 2)


class RecordBatches:
    """What BatchLoader's workers run; requests name positions in the files of their epoch: those of
    `records` in epoch 0, else of train_<epoch>/ in `scratch`.

    `size` is that of the images given: centre crops, or random crops, mirrored or not with
    `crop_flip`. The blocks of `window` records stay in memory, so that batches that share one read
    it once.
    """

    plan: Plan | None = None
    rank = 0
    transform: Callable[[Any], Any] | None = None
    _epoch: int | None = None
    _reader: RecordReader | None = None
    _block: Any = None

    def __init__(
        self,
        records: RecordSet,
        scratch: Path,
        size: int,
        window: int,
        augment: str = "none",
        seed: int = 0,
    ) -> None:
        self.records = records
        self.rows = len(records)
        self.scratch = scratch
        self.size = size
        self.augment = augment
        self.seed = seed
        self.blocks = window // BLOCK + 3  # its ends cut two

    def __getstate__(self) -> dict[str, Any]:
        return {
            **self.__dict__,
            "plan": None,
            "_epoch": None,
            "_reader": None,
            "_block": None,
        }

    def __len__(self) -> int:
        return len(self.plan or ())

    def place(self, row: int, message: str) -> str:
        return message.partition(": ")[0]

    def new_slots(self, workers: int, per_worker: int) -> None:
        """None: batches cross in memory of their own, for which there must be room."""
        plan = self.plan
        largest = 0
        if plan is not None and len(plan):
            largest = len(plan.batch(0, self.rank))
        require_room(workers * max(per_worker - 2, 1) * largest * self.size**2 * 3)

    def check(self, batch: Batch) -> None:
        """Raise MillraceError if images are not uint8 from 0 to 255 at their size, channels
        last."""
        images = batch.images
        size = self.size
        if images.dtype != torch.uint8 or (len(images) and images.shape[1:] != (size, size, 3)):
            problem = (
                f"images are {images.dtype} {tuple(images.shape)}, not uint8 (n, {size}, {size}, 3)"
            )
            raise MillraceError(problem, f"step {batch.step}", "Give RGB pixels from 0 to 255")
        if len(images) >= _JUDGED and images.max() <= 1:
            problem = (
                f"no pixel of {len(images)} images is above 1: they were scaled to [0, 1] before"
            )
            raise MillraceError(problem, f"step {batch.step}", "Give pixels from 0 to 255")

    def close(self) -> None:
        """Close the files and forget their blocks."""
        if self._reader is not None:
            self._reader.close()
        self._epoch = self._reader = self._block = None

    def records_of(self, epoch: int) -> RecordSet:
        """The records of an epoch."""
        if epoch == 0:
            return self.records
        return RecordSet.open(self.scratch, epochs.folder_of(self.scratch, epoch).name)

    def load(self, request: BatchRequest, slots: BatchSlots | None = None) -> Batch:
        """Read and crop the records of one step."""
        reader = self._reader_of(request.epoch)
        pictures: list[np.ndarray] = []
        labels: list[int] = []
        ids: list[int] = []
        for row in request.rows.tolist():
            file, at = reader.records.locate(row)
            number = at % BLOCK
            block = self._block(file, at - number, BLOCK)
            pictures.append(block.images[number])
            labels.append(int(block.labels[number]))
            ids.append(int(block.ids[number]))

        record_ids = np.array(ids, np.int64)
        images = self._cropped(pictures, record_ids)
        if request.following is None:
            self.close()  # the end of the epoch, whose folder may be removed now
        return Batch(
            step=request.step,
            epoch=request.epoch,
            images=torch.from_numpy(images),
            labels=torch.tensor(labels, dtype=torch.int64),
            ids=record_ids,
            planned=len(request.rows),
            bad=[],
            filler=request.filler,
        )

    def _reader_of(self, epoch: int) -> RecordReader:
        """The reader of the epoch's files, which stays open while the epoch lasts."""
        if self._reader is None or epoch != self._epoch:
            self.close()
            self._epoch = epoch
            self._reader = RecordReader(self.records_of(epoch))
            self._block = lru_cache(self.blocks)(self._reader.read)
        return self._reader

    def _cropped(self, pictures: list[np.ndarray], ids: np.ndarray) -> np.ndarray:
        """The pictures at their size, uint8 (n, size, size, 3)."""
        if self.augment == "none":
            return np.stack([self._middle(picture) for picture in pictures])

        assert self._epoch is not None  # it is that of the reader
        sizes = np.array([picture.shape[1::-1] for picture in pictures])
        boxes, flips = random_crops(self.seed, self._epoch, ids, sizes)
        flips &= self.augment == "crop_flip"
        cropped = []
        for picture, box, flip in zip(pictures, boxes, flips, strict=True):
            cropped.append(crop(picture, box, self.size, flip))
        return np.stack(cropped)

    def _middle(self, picture: np.ndarray) -> np.ndarray:
        """The centre crop of torchvision."""
        height, width = picture.shape[:2]
        top = round((height - self.size) / 2.0)
        left = round((width - self.size) / 2.0)
        return picture[top : top + self.size, left : left + self.size]
