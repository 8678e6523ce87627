"""A set of records as a data set of torch, in the place of torchvision's ImageFolder."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from torch.utils.data import Dataset

from millrace.common.loading.arguments import function, path_of
from millrace.image.records.reader import RecordReader
from millrace.image.records.record_set import RecordSet


class HDF5Record(Dataset):
    """(image, label) by number as of ImageFolder: an RGB image of PIL, or what `transform` makes of
    it.

        from millrace import HDF5Record

        train = HDF5Record("results/image/records/train", transform=None)  # yours
        image, label = train[0]
        print(len(train), image.size, train.classes[label])

    `root` is a split's folder, or a produced epoch's (train_1). Right in any order, with
    any way of starting workers: each opens up to `max_open_files` files of its own.
    """

    def __init__(
        self,
        root: str | os.PathLike,
        transform: Callable | None = None,
        target_transform: Callable | None = None,
        max_open_files: int = 256,
    ) -> None:
        self.root = path_of("root", root)
        self.transform = function("transform", transform)
        self.target_transform = function("target_transform", target_transform)
        place = Path(os.path.abspath(self.root))
        self.records = RecordSet.open(place.parent, place.name)
        self.classes = self.records.classes
        self.class_to_idx = {name: label for label, name in enumerate(self.classes)}
        self.reader = RecordReader(self.records, max_open_files)

    @cached_property
    def targets(self) -> list[int]:
        """The label of every record."""
        files = range(len(self.records.files))
        labels = list(map(self.reader.labels, files))
        return np.concatenate(labels).tolist()

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        """Raises IndexError past the end, on which `for` loops over a data set rely."""
        number = operator.index(index)
        file, record = self.records.locate(number + len(self) if number < 0 else number)
        (pixels,), (label,), _ = self.reader.read(file, record, 1)
        image: Any = Image.fromarray(pixels)
        target: Any = int(label)
        if self.transform:
            image = self.transform(image)
        if self.target_transform:
            target = self.target_transform(target)
        return image, target
