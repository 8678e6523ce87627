"""Memory of a training step as a formula, fixed + n * (a T + b T^2 + c C), fitted to trials;
budgets from it.

n rows padded to T seconds, with C characters of transcript a row. T stands for convolutions and
feed-forward layers, T^2 for attention, C for the decoder's text and logits.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from millrace.asr.planning.cut import batch_cost
from millrace.common.errors import MillraceError

_ROUND = 9


class Point(NamedTuple):
    """One measured peak, GB, of `rows` rows padded to `seconds`, `characters` characters a row."""

    rows: int
    seconds: float
    characters: float
    peak_gb: float


@dataclass(frozen=True)
class MemoryModel:
    """Coefficients, none below 0: GB, GB a second, GB a second squared, GB a character."""

    fixed_gb: float
    per_second_gb: float
    per_second_squared_gb: float
    per_character_gb: float

    def per_sample(
        self,
        seconds: float | np.ndarray,
        characters: float | np.ndarray,
    ) -> np.ndarray:
        """GB that a row takes which is padded to `seconds`."""
        seconds = np.asarray(seconds, np.float64)
        linear = self.per_second_gb * seconds + self.per_second_squared_gb * seconds**2
        return linear + self.per_character_gb * np.asarray(characters, np.float64)

    def predict(
        self,
        rows: float,
        seconds: float,
        characters: float,
    ) -> float:
        """GB of a step with a batch of this shape."""
        return float(self.fixed_gb + rows * self.per_sample(seconds, characters))

    def as_dict(self) -> dict[str, Any]:
        return {
            "fixed_gb": round(self.fixed_gb, _ROUND),
            "per_sample_gb": {
                "per_second": round(self.per_second_gb, _ROUND),
                "per_second_squared": round(self.per_second_squared_gb, _ROUND),
                "per_character": round(self.per_character_gb, _ROUND + 3),
            },
        }


def fit(points: Sequence[Point]) -> MemoryModel:
    """The model with the least squares of relative errors, no coefficient below 0.

    Exact: with four columns, every set of columns is tried, and the best solution without a
    negative one is taken (the non-negative least-squares problem is convex, and its solution is the
    plain one on the columns it uses). Raises MillraceError without points.
    """
    if not points:
        raise MillraceError(
            "no trial has measured anything", "memory model", "Calibrate a bucket first"
        )
    rows, seconds, characters, peaks = np.array(points, np.float64).T

    # Divided by the peaks, so that errors are relative; columns scaled to 1, so that the solution
    # is stable.
    ones = np.ones_like(rows)
    columns = np.stack([ones, rows * seconds, rows * seconds**2, rows * characters], axis=1)
    weighted = columns / peaks[:, None]
    scale = np.maximum(np.abs(weighted).max(axis=0), 1e-30)
    smallest = np.inf
    best = np.zeros(4)
    for count in range(1, 5):
        for used in map(list, itertools.combinations(range(4), count)):
            scaled = weighted[:, used] / scale[used]
            solution, *_ = np.linalg.lstsq(scaled, np.ones(len(peaks)), rcond=None)
            error = float(((scaled @ solution - 1) ** 2).sum())
            # Of equally good ones, that with the fewest terms.
            is_smaller = error < smallest * (1 - 1e-9) - 1e-18
            if is_smaller and (solution >= 0).all():
                smallest = error
                best = np.zeros(4)
                best[used] = solution / scale[used]
    return MemoryModel(*map(float, best))


def worst_underestimate(
    model: MemoryModel,
    points: Sequence[Point],
) -> float:
    """The share by which the model predicts too little, of the point where that is most; 0 if it
    never does."""
    errors = [1 - model.predict(*shape) / peak for *shape, peak in points]
    return round(max(0.0, *errors), 6)


def budget_of(
    model: MemoryModel,
    limit_gb: float,
    rows: int,
    shortest: float,
    longest: float,
    characters: float,
) -> dict[str, float | int | None]:
    """What a planner may put into a batch of a bucket, as BatchBudget has it.

    By the model, memory stays below the limit for every length from `shortest` to `longest`, with
    `characters` a row, and there are never more than the calibrated `rows` of the longest. Of all
    limits of cost or of seconds, each with the limit of rows that it needs, the one whose batches
    hold the most audio, on average over the lengths. If the model says nothing of a batch, only
    rows are limited.
    """
    lengths = np.linspace(max(shortest, 0.01), longest, 256)
    per_row = model.per_sample(lengths, characters)
    budget: dict[str, float | int | None] = {"seconds": None, "cost": None, "rows": rows}
    if not per_row.max() > 0 or limit_gb <= model.fixed_gb:
        return budget
    fitting = (limit_gb - model.fixed_gb) / per_row  # rows of every length that fit into memory
    most_audio = 0.0
    if fitting.min() >= rows:
        most_audio = float((np.minimum(fitting, rows) * lengths).mean())
    costs = batch_cost(np.ones(len(lengths)), lengths)
    for name, load in (("cost", costs), ("seconds", lengths)):
        full = rows * float(load[-1])
        lowest = min(float((fitting * load).min()), full)
        for limit in np.linspace(lowest, full, 64):
            allowed = limit / load
            # Short rows may need a limit of their number, so that the load's limit does not exceed
            # memory.
            over = allowed > fitting * (1 + 1e-9)
            cap = None
            if over.any():
                cap = math.floor(fitting[over].min())
            audio = float((np.minimum(allowed, cap or np.inf) * lengths).mean())
            if cap != 0 and audio > most_audio * (1 + 1e-9):
                most_audio = audio
                # A batch that fills the limit exactly is within.
                rounded = round(float(limit) * (1 + 1e-9), _ROUND)
                budget = {
                    "seconds": None,
                    "cost": None,
                    name: rounded,
                    "rows": cap,
                }
    return budget
