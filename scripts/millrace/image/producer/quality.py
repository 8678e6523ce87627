"""How well an epoch is mixed by pools of K files."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from millrace.image.records.reader import RecordReader
from millrace.image.records.record_set import RecordSet


class Spread(NamedTuple):
    """What is expected of an epoch, as shares of it; each is 1 after a full shuffle.

    `record`: over how much of it the records of one file are spread. `mean_class`, `worst_class`:
    in how much of it a class is found, in the mean over classes and for the class that lies in the
    fewest files.
    """

    pool: int
    record: float
    mean_class: float
    worst_class: float

    def line(self, records: int) -> str:
        """One sentence for a log."""
        reach = (
            f"the records of one file are spread over {self.record * records:,.0f}"
            f" ({self.record:.1%})"
        )
        classes = f"{self.mean_class:.1%} of the epoch, at worst in {self.worst_class:.1%}"
        return f"shuffle_pool {self.pool}: {reach}; a class is found in {classes}"


def expected_spread(records: RecordSet, pool: int) -> Spread:
    """The spread that pools of `pool` files give to epochs of `records`, in the mean over seeds."""
    reader = RecordReader(records)
    files = len(records.files)
    pool = min(pool, files)
    whole, rest = divmod(files, pool)
    sizes = [pool] * whole
    if rest:
        sizes.append(rest)

    holding = np.zeros(len(records.classes), np.int64)  # files that hold a class
    for file in range(files):
        labels = np.unique(reader.labels(file))
        holding[labels] += 1

    by_class = []
    for count in holding.tolist():
        if count:
            by_class.append(_share_with_one_of(count, files, sizes))
    record = sum(size * size for size in sizes) / files**2
    return Spread(pool, record, float(np.mean(by_class)), min(by_class))


def _share_with_one_of(holding: int, files: int, pools: Sequence[int]) -> float:
    """The share of the files whose pool is expected to have one of `holding` of them; `pools` are
    the sizes of the pools that all files are drawn to."""
    expected = 0.0
    for size in pools:
        chance_of_none = math.comb(files - holding, size) / math.comb(files, size)
        expected += (1.0 - chance_of_none) * size
    return expected / files
