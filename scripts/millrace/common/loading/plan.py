"""The plan of an epoch, as loaders see it, and what of it a worker is sent."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np


class Plan(Protocol):
    """Which rows form which batch: an epoch of `len(plan)` steps, the same number on every rank.

    A plan that is resumed from a loader's state also has `epoch`, `world_size`, and arrays `rows`,
    `offsets`.
    """

    def __len__(self) -> int: ...

    def batch(self, step: int, rank: int) -> np.ndarray:
        """Row numbers (int64) of the batch of `rank` at `step`."""

    def is_filler(self, step: int, rank: int) -> bool:
        """Whether the batch repeats another one, to keep the ranks in step."""


class BatchRequest(NamedTuple):
    """What a worker gets: the rows of one step, and those it will get next (to be read ahead)."""

    step: int
    rows: np.ndarray
    filler: bool = False
    following: np.ndarray | None = None
    epoch: int = 0
