"""Memory of a training step as a formula: fixed + n * (a T + b T^2 + c C), fitted to trials, and budgets from
it.

n rows padded to T seconds, with C characters of transcript a row. T stands for convolutions and feed-forward
layers, T^2 for attention, C for the decoder's text and logits.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from millrace.asr.planning.cut import batch_cost
from millrace.common.errors import MillraceError

_ROUND = 9


@dataclass(frozen=True)
class Point:
    """One measured peak, GB, of `rows` rows padded to `seconds`, `characters` characters a row."""

    bucket: str
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

    def per_sample(self, seconds: float | np.ndarray, characters: float | np.ndarray) -> np.ndarray:
        """GB that a row takes which is padded to `seconds`."""
        seconds = np.asarray(seconds, dtype=np.float64)
        linear = self.per_second_gb * seconds + self.per_second_squared_gb * seconds**2
        return linear + self.per_character_gb * np.asarray(characters, dtype=np.float64)

    def predict(self, rows: float, seconds: float, characters: float) -> float:
        """GB of a step with a batch of this shape."""
        return float(self.fixed_gb + rows * self.per_sample(seconds, characters))

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "fixed_gb": round(self.fixed_gb, _ROUND),
            "per_sample_gb": {
                "per_second": round(self.per_second_gb, _ROUND),
                "per_second_squared": round(self.per_second_squared_gb, _ROUND),
                "per_character": round(self.per_character_gb, _ROUND + 3),
            },
        }

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> MemoryModel:
        """The model that `as_dict` described."""
        each = value["per_sample_gb"]
        return cls(value["fixed_gb"], each["per_second"], each["per_second_squared"], each["per_character"])


def fit(points: Sequence[Point]) -> MemoryModel:
    """The model with the least squares of relative errors, no coefficient below 0.

    Exact: with four columns, every set of columns is tried, and the best solution without a negative one is
    taken (the non-negative least-squares problem is convex, and its solution is the plain one on the columns
    it uses). Raises MillraceError without points.
    """
    if not points:
        raise MillraceError(
            "no trial has measured anything", where="memory model", remedy="Calibrate a bucket first"
        )
    rows, seconds, characters, peaks = (
        np.array([getattr(point, name) for point in points], dtype=np.float64)
        for name in ("rows", "seconds", "characters", "peak_gb")
    )
    columns = np.stack([np.ones_like(rows), rows * seconds, rows * seconds**2, rows * characters], axis=1)
    weighted = columns / peaks[:, None]
    scale = np.maximum(np.abs(weighted).max(axis=0), 1e-30)
    best, solution = np.inf, np.zeros(columns.shape[1])
    for count in range(1, columns.shape[1] + 1):
        for used in map(list, itertools.combinations(range(columns.shape[1]), count)):
            found, *_ = np.linalg.lstsq(weighted[:, used] / scale[used], np.ones(len(peaks)), rcond=None)
            if (found < 0).any():
                continue
            error = float(((weighted[:, used] / scale[used]) @ found - 1).__pow__(2).sum())
            if error < best * (1 - 1e-9) - 1e-18:  # of equally good ones, that with the fewest terms
                best, solution = error, np.zeros(columns.shape[1])
                solution[used] = found / scale[used]
    return MemoryModel(*map(float, solution))


def residuals(model: MemoryModel, points: Sequence[Point]) -> dict[str, Any]:
    """How far the model is off: relative errors (predicted / measured - 1), over all and the worst
    underestimate."""
    errors = np.array([model.predict(p.rows, p.seconds, p.characters) / p.peak_gb - 1 for p in points])
    return {
        "points": len(errors),
        "mean_abs": round(float(np.abs(errors).mean()), 6),
        "max_abs": round(float(np.abs(errors).max()), 6),
        "worst_under": round(float(max(-errors.min(), 0.0)), 6),
    }


def budget_of(
    model: MemoryModel, limit_gb: float, rows: int, shortest: float, longest: float, characters: float
) -> dict[str, float | int | None]:
    """What a planner may put into a batch of a bucket, as BatchBudget has it.

    Memory by the model stays below the limit for every length from `shortest` to `longest`, with `characters`
    a row, and there are never more than the calibrated `rows` of the longest. A limit of cost or of seconds,
    with one of rows for the shortest, is taken so that batches of all lengths together hold the most audio.
    Where the model says nothing of a batch, only rows are limited.
    """
    lengths = np.linspace(max(min(shortest, longest), 0.01), longest, 256)
    each = model.per_sample(lengths, characters)
    only_rows = {"seconds": None, "cost": None, "rows": rows}
    if not each.max() > 0 or limit_gb <= model.fixed_gb:
        return only_rows
    fitting = (limit_gb - model.fixed_gb) / each
    best, found = float((np.minimum(fitting, rows) * lengths).mean()) * (fitting.min() >= rows), only_rows
    for name, load in (("cost", batch_cost(np.ones(len(lengths)), lengths)), ("seconds", lengths)):
        most = rows * float(load[-1])
        for limit in np.linspace(min(float((fitting * load).min()), most), most, 64):
            over = limit / load > fitting * (1 + 1e-9)
            cap = math.floor(fitting[over].min()) if over.any() else None
            held = np.minimum(limit / load, cap or np.inf)
            audio = float((held * lengths).mean())
            if cap != 0 and audio > best * (1 + 1e-9):
                # A batch that fills the limit exactly is within.
                best, found = (
                    audio,
                    {**only_rows, name: round(float(limit) * (1 + 1e-9), _ROUND), "rows": cap},
                )
    return found
