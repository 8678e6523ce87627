"""The weight of a batch in the loss, on its way through the trainer of another library."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from typing import Any

from millrace.asr.planning.loader import RankLoader
from millrace.common.errors import MillraceError

LOSS_WEIGHT = "loss_weight"


def send_weights(loader: RankLoader) -> None:
    """Let each batch of a loader that was not read yet carry its weight for `take_weight`."""
    if loader.dataset.transform is not None:
        loader.dataset.transform = _Weighed(loader.dataset.transform)


def take_weight(batch: Any) -> float:
    """0 for a filler, which repeats another batch, else 1; in a dict it is no longer there then."""
    if isinstance(batch, MutableMapping):
        return batch.pop(LOSS_WEIGHT, 1.0)
    return 0.0 if getattr(batch, "filler", False) else 1.0


class _Weighed:
    """A transform whose result has the batch's weight; a class, as workers get it by pickle."""

    def __init__(self, transform: Callable[[Any], Any]) -> None:
        self.transform = transform

    def __call__(self, batch: Any) -> Any:
        weight = 0.0 if batch.filler else 1.0
        result = self.transform(batch)
        if isinstance(result, dict):
            return {**result, LOSS_WEIGHT: weight}
        if hasattr(result, "filler"):
            return result
        problem = f"transform gives a {type(result).__name__}, with no place for a filler's weight"
        raise MillraceError(problem, "transform", "Give the batch, or a dict")
