"""How well an epoch is mixed: what a pool of K files promises, and what the order of ids and labels
shows."""

from __future__ import annotations

import math
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
    reader, files = RecordReader(records), len(records.files)
    pool = min(pool, files)
    sizes = [pool] * (files // pool) + [files % pool] * (files % pool > 0)
    holding = np.zeros(len(records.classes), np.int64)  # files that hold a class
    for file in range(files):
        holding[np.unique(reader.labels(file))] += 1

    def chance(holding: int, size: int) -> float:
        """That a pool of `size` files has one of `holding` files."""
        return 1.0 - math.comb(files - holding, size) / math.comb(files, size)

    by_class = [
        sum(chance(n, size) * size for size in sizes) / files for n in holding.tolist() if n
    ]
    record = sum(size * size for size in sizes) / files**2
    return Spread(pool, record, float(np.mean(by_class)), min(by_class))


def label_run_entropy(labels: np.ndarray, run: int = 256) -> float:
    """Mean entropy, in bits, of the labels in runs of `run` records: 0 in class order, highest if
    mixed."""
    run = min(run, len(labels))
    whole = labels[: len(labels) // run * run].reshape(-1, run)
    shares = (np.unique(row, return_counts=True)[1] / run for row in whole)
    return float(np.mean([-(share * np.log2(share)).sum() for share in shares]))


def neighbour_distance(ids: np.ndarray) -> float:
    """How far neighbours of the conversion have moved apart, as a share of the epoch; a third if
    mixed."""
    return float(np.abs(np.diff(np.argsort(ids))).mean() / len(ids))
