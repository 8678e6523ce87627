"""Rows cut into nearly uniform batches: seeded shuffle, sort by duration in windows, cut at the
budget."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np

from millrace.common import hashing
from millrace.common.errors import MillraceError
from millrace.common.loading.arguments import above_zero

QUADRATIC_SECONDS = 60.0
_LOW = np.uint64(0xFFFFFFFF)
_MAX_ROWS = 1 << 31
_SMALL_WINDOW = 2000  # rows; some 60 batches, which still pad less than 1 %
_JITTER = 0.004


def batch_cost(rows: np.ndarray | float, longest: np.ndarray | float) -> np.ndarray:
    """Modelled work of batches padded to `longest` seconds: n * (T + T^2 / 60 s); T^2 is
    attention."""
    longest = np.asarray(longest, np.float64)
    attention = longest * longest / QUADRATIC_SECONDS
    of_a_row = longest + attention
    return np.asarray(rows, np.float64) * of_a_row


@dataclass(frozen=True)
class BatchBudget:
    """What a batch of one bucket may hold; None = no limit.

    `seconds`: rows * longest; `cost`: rows * (T + T^2 / 60), T the longest in seconds; `rows`:
    their number.
    """

    seconds: float | None = 240.0
    cost: float | None = None
    rows: int | None = None

    def __post_init__(self) -> None:
        given = {name: limit for name, limit in vars(self).items() if limit is not None}
        if not given:
            raise MillraceError("a batch budget needs a limit", remedy="Give seconds")
        for name, limit in given.items():
            above_zero(name, limit)

    def most_rows(self, longest: np.ndarray) -> np.ndarray:
        """int64 rows that fit if the longest lasts `longest` seconds; 0 if one alone is over the
        budget."""
        longest = longest.astype(np.float64)
        by_rows = _MAX_ROWS if self.rows is None else int(self.rows)
        max_rows = np.full(len(longest), by_rows, dtype=np.int64)
        if self.seconds is not None:
            by_seconds = _fitting(self.seconds, longest)
            max_rows = np.minimum(max_rows, by_seconds)
        if self.cost is not None:
            by_cost = _fitting(self.cost, batch_cost(1.0, longest))
            max_rows = np.minimum(max_rows, by_cost)
        return max_rows


def _fitting(limit: float, of_a_row: np.ndarray) -> np.ndarray:
    """int64 number of rows that a limit holds."""
    whole = np.floor(limit / of_a_row)
    fits = np.minimum(whole, _MAX_ROWS).astype(np.int64)
    is_over = fits * of_a_row > limit  # the division may round up
    return fits - is_over


@dataclass
class Cut:
    """Batches of one bucket: `rows` (numbers in the bucket) in batches that begin at `starts`."""

    rows: np.ndarray
    starts: np.ndarray
    windows: np.ndarray
    longest: np.ndarray
    seconds: np.ndarray


def shuffled(rows: int, key: np.uint64) -> np.ndarray:
    """uint32 permutation of range(rows): the order of their hashes, the same on all machines and
    numpys."""
    numbers = np.arange(rows, dtype=np.uint64)
    hashes = hashing.mix(numbers ^ key) & ~_LOW
    order = np.sort(hashes | numbers) & _LOW
    return order.astype(np.uint32)


def cut_bucket(
    durations: np.ndarray, budget: BatchBudget, key: np.uint64, window: int | None
) -> Cut:
    """Cut a bucket's rows (float32 seconds, above 0) into batches; every row is in exactly one.

    Without a `window` there is no sorting: for rows that all last equally long.
    """
    rows = shuffled(len(durations), key)

    if window is None:
        edges = [0, len(rows)]
    else:
        edges = _window_edges(len(rows), window)

    # With fewer than 4 windows the shuffle alone mixes too little: also swap rows of nearly equal
    # duration.
    is_small = len(edges) - 1 < 4
    jitter = hashing.mix(np.asarray(key)) if is_small else None

    parts: list[tuple[np.ndarray, ...]] = []
    for number, (low, high) in enumerate(itertools.pairwise(edges)):
        rows[low:high], lengths = _by_duration(rows[low:high], durations, jitter)
        first, longest, seconds = _cut_window(lengths, budget)
        windows = np.full(len(first), number)
        parts.append((first + low, windows, longest, seconds))
    if not parts:
        nothing = np.zeros(0, int)
        return Cut(rows, nothing, nothing, nothing, nothing)
    starts, numbers, longest, seconds = map(np.concatenate, zip(*parts, strict=True))
    return Cut(rows, starts, numbers, longest, seconds)


def _window_edges(rows: int, window: int) -> list[int]:
    """Where the windows begin that are sorted by duration, and the end of the last.

    Not the whole bucket: a full sort would give the same batches every epoch. Small buckets get at
    least 8 windows.
    """
    window_rows = min(window, max(_SMALL_WINDOW, rows // 8))
    count = math.ceil(rows / window_rows)
    numbers = np.arange(count + 1, dtype=np.int64)
    return (numbers * rows // max(count, 1)).tolist()


def _by_duration(
    rows: np.ndarray, durations: np.ndarray, jitter: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """The rows in the order of their durations, and these; `jitter` blurs the order by up to 0.4
    %."""
    lengths = sorting = durations[rows]
    if jitter is not None:
        mixed = hashing.mix(rows.astype(np.uint64) ^ jitter)
        bits = mixed >> np.uint64(40)
        draw = bits.astype(np.float32) * np.float32(2.0**-24)
        blur = np.float32(_JITTER) * draw
        sorting = lengths * (1 - blur)

    # The bits of positive floats rise with their value; one sort of 64-bit keys is faster than an
    # argsort.
    numbers = np.arange(len(rows), dtype=np.uint64)
    bits_of_sorting = sorting.view(np.uint32).astype(np.uint64)
    keys = (bits_of_sorting << np.uint64(32)) | numbers
    order = (np.sort(keys) & _LOW).astype(np.int64)
    return rows[order], lengths[order]


def _cut_window(
    lengths: np.ndarray, budget: BatchBudget
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Where the batches of a window begin, how long the longest row of each lasts, and how long all
    of its rows."""
    # A batch is padded to its longest row so far. One over the budget is a batch of its own.
    padded = np.maximum.accumulate(lengths)
    max_rows = np.maximum(budget.most_rows(padded), 1)
    first = _greedy_starts(max_rows)
    seconds = np.add.reduceat(lengths.astype(np.float64), first)
    longest = np.maximum.reduceat(lengths, first)
    return first, longest, seconds


def _greedy_starts(max_rows: np.ndarray) -> np.ndarray:
    """Starts of greedy batches of rows in rising duration; `max_rows[i]` fit up to row i
    (falling)."""
    # A batch from s up to e fits if e - s <= max_rows[e - 1]. As e - max_rows[e - 1] rises,
    # bisection finds the last such e for every s.
    rows = np.arange(len(max_rows), dtype=np.int64)
    ends = np.searchsorted(rows + 1 - max_rows, rows, side="right").tolist()
    starts = []
    at = 0
    while at < len(ends):
        starts.append(at)
        at = ends[at]
    return np.array(starts, np.int64)
