"""The lines of PyTorch's ImageNet example: what a run says while it trains."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

# Columns of a line: what a value is the mean over, and its layout.
_COLUMNS = {
    "Time": ("steps", "6.3f"),
    "Data": ("steps", "6.3f"),
    "Loss": ("images", ".4e"),
    "Acc@1": ("images", "6.2f"),
    "Acc@5": ("images", "6.2f"),
}


class EpochMeter:
    """Values since the last line, and in brackets since the epoch began (or the run went on)."""

    def __init__(self, world_size: int) -> None:
        self._world_size = world_size
        self._epoch = -1
        self._step = 0
        self._steps = 0  # of the plan
        self._summed_epoch = -1
        self._sums: Counter[str] = Counter()

    def begin(self, epoch: int, step: int, steps: int) -> None:
        """A plan of so many steps begins at `step`."""
        self._steps = steps
        self.reached(epoch, step)

    def reached(self, epoch: int, step: int) -> None:
        """So many steps of the epoch are done."""
        self._epoch = epoch
        self._step = step

    def line(self, figures: Mapping[str, Any]) -> str:
        """The line for the figures of the loop since the last one."""
        if self._summed_epoch != self._epoch:
            self._summed_epoch = self._epoch
            self._sums = Counter()
        now = self._values(figures)
        self._sums.update(now)

        width = len(str(self._steps))
        parts = [f"Epoch: [{self._epoch}][{self._step:>{width}}/{self._steps}]"]
        for name, (unit, layout) in _COLUMNS.items():
            value = now[name] / now[unit]
            mean = self._sums[name] / self._sums[unit]
            parts.append(f"{name} {value:{layout}} ({mean:{layout}})")
        return "\t".join(parts)

    def _values(self, figures: Mapping[str, Any]) -> dict[str, float]:
        """Sums over steps or images, by column, and the numbers of both."""
        counts = figures["counts"]
        images = max(counts["samples"], 1)
        seconds = figures["seconds"]
        return {
            "steps": counts.get("batches", 0) / self._world_size or 1,
            "images": images,
            "Time": seconds,
            "Data": seconds * figures["time_share"]["data_wait"],
            "Loss": (figures["loss"] or 0.0) * images,
            "Acc@1": 100 * counts["top1"],
            "Acc@5": 100 * counts["top5"],
        }
