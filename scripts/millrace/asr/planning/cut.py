"""Rows cut into nearly uniform batches: seeded shuffle, sort by duration inside a window, cut at the memory
budget."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from millrace.common import hashing
from millrace.common.errors import MillraceError

QUADRATIC_SECONDS = 60.0
_LOW = np.uint64(0xFFFFFFFF)
_MOST = 1 << 31
_SMALL_WINDOW = 2000  # rows; some 60 batches, which still pad less than 1 %
_JITTER = 0.004


def batch_cost(rows: np.ndarray, longest: np.ndarray) -> np.ndarray:
    """Modelled work of batches padded to `longest` seconds: n * (T + T^2 / 60 s), the second term being
    attention."""
    longest = np.asarray(longest, dtype=np.float64)
    return np.asarray(rows, dtype=np.float64) * (longest + longest * longest / QUADRATIC_SECONDS)


@dataclass(frozen=True)
class BatchBudget:
    """What a batch of one bucket may hold; None = no limit.

    `seconds`: rows * longest; `cost`: rows * (T + T^2 / 60), T the longest in seconds; `rows`: their number.
    """

    seconds: float | None = 240.0
    cost: float | None = None
    rows: int | None = None

    def __post_init__(self) -> None:
        limits = (self.seconds, self.cost, self.rows)
        if all(limit is None for limit in limits) or any(
            limit is not None and not limit > 0 for limit in limits
        ):
            raise MillraceError(
                f"a batch budget needs a limit, and limits above 0: {self}", where="batch budget"
            )

    def most_rows(self, longest: np.ndarray) -> np.ndarray:
        """int64 rows that fit when the longest lasts `longest` seconds; 0 where one alone is over the
        budget."""
        longest = longest.astype(np.float64)
        most = np.full(len(longest), _MOST if self.rows is None else int(self.rows), dtype=np.int64)
        for limit, each in ((self.seconds, longest), (self.cost, batch_cost(np.ones(1), longest))):
            if limit is not None:
                fits = np.minimum(np.floor(limit / each), _MOST).astype(np.int64)
                most = np.minimum(most, fits - (fits * each > limit))  # the division may round up
        return most


@dataclass
class Cut:
    """Batches of one bucket: `rows` (numbers in the bucket) in batches that begin at `starts`."""

    rows: np.ndarray
    starts: np.ndarray
    windows: np.ndarray
    longest: np.ndarray
    seconds: np.ndarray
    over_budget: int


def shuffled(rows: int, key: np.uint64) -> np.ndarray:
    """uint32 permutation of range(rows): the order of their hashes, the same on every machine and numpy
    version."""
    numbers = np.arange(rows, dtype=np.uint64)
    return (np.sort((hashing.mix(numbers ^ key) & ~_LOW) | numbers) & _LOW).astype(np.uint32)


def cut_bucket(durations: np.ndarray, budget: BatchBudget, key: np.uint64, window: int) -> Cut:
    """Cut a bucket's rows (float32 seconds, above 0) into batches; every row is in exactly one."""
    rows = shuffled(len(durations), key)
    # Several windows even in a small bucket: sorted as a whole it would give the same batches every epoch.
    count = -(-len(rows) // min(window, max(_SMALL_WINDOW, len(rows) // 8)))
    jitter = hashing.mix(key) if count < 4 else None
    bounds = (np.arange(count + 1, dtype=np.int64) * len(rows)) // max(count, 1)
    starts, longest, seconds, windows, over_budget = [], [], [], [], 0
    for number, (low, high) in enumerate(zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)):
        ordered, lengths = _by_duration(rows[low:high], durations, jitter)
        rows[low:high] = ordered
        over_budget += int((budget.most_rows(lengths) < 1).sum())
        most = budget.most_rows(np.maximum.accumulate(lengths))
        first = _cut_window(np.maximum(most, 1))
        starts.append(first + low)
        longest.append(np.maximum.reduceat(lengths, first))
        seconds.append(np.add.reduceat(lengths.astype(np.float64), first))
        windows.append(np.full(len(first), number, dtype=np.int32))
    joined = [
        np.concatenate(parts) if parts else np.zeros(0) for parts in (starts, windows, longest, seconds)
    ]
    return Cut(
        rows, joined[0].astype(np.int64), joined[1].astype(np.int32), joined[2], joined[3], over_budget
    )


def _by_duration(
    rows: np.ndarray, durations: np.ndarray, jitter: np.uint64 | None
) -> tuple[np.ndarray, np.ndarray]:
    """The rows in the order of their durations, and these; `jitter` lets rows of about one duration change
    places."""
    lengths = sorting = durations[rows]
    if jitter is not None:
        draw = (hashing.mix(rows.astype(np.uint64) ^ jitter) >> np.uint64(40)).astype(
            np.float32
        ) * np.float32(2.0**-24)
        sorting = lengths * (1 - np.float32(_JITTER) * draw)
    # The bits of positive floats rise with their value; one sort of 64-bit keys is faster than an argsort.
    keys = (sorting.view(np.uint32).astype(np.uint64) << np.uint64(32)) | np.arange(
        len(rows), dtype=np.uint64
    )
    order = (np.sort(keys) & _LOW).astype(np.int64)
    return rows[order], lengths[order]


def _cut_window(most: np.ndarray) -> np.ndarray:
    """Starts of greedy batches of rows in rising duration; `most[i]` rows fit up to row i (falling)."""
    # A batch from s up to e fits when e - s <= most[e - 1]; e - most[e - 1] rises: bisection finds the last
    # such e.
    rows = np.arange(len(most), dtype=np.int64)
    ends = np.searchsorted(rows + 1 - most, rows, side="right").tolist()
    starts, at = [], 0
    while at < len(ends):
        starts.append(at)
        at = ends[at]
    return np.array(starts, dtype=np.int64)
