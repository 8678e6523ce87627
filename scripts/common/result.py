"""What a finished run has to say."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from scripts.common import jsonl
from scripts.common.position import Position
from scripts.common.ranks import Ranks


@dataclass
class Result:
    """`model` is the trained one, the same on every rank (`digest` is of its bits).

    `loss` is that of the last line of metrics.jsonl, `evaluations` the metrics by optimiser step; `resumed_step` is
    None where the run began anew.
    """

    model: torch.nn.Module
    position: Position
    ranks: Ranks
    loss: float | None
    evaluations: dict[int, dict[str, float]]
    resumed_step: int | None
    digest: int

    def summary(self) -> dict[str, Any]:
        """For metrics.json: counts, the last loss, the first and last evaluation."""
        steps = sorted(self.evaluations)
        return {
            "epochs": self.position.epoch,
            "optimizer_steps": self.position.optimizer_step,
            "samples": self.position.samples,
            "seconds": self.position.seconds,
            "world_sizes": [list(pair) for pair in self.position.history],
            "loss": self.loss,
            "first_evaluation": {"step": steps[0], **self.evaluations[steps[0]]} if steps else None,
            "last_evaluation": {"step": steps[-1], **self.evaluations[steps[-1]]} if steps else None,
        }


def known(path: Path) -> tuple[float | None, dict[int, dict[str, float]]]:
    """The last loss and the evaluations that a metrics.jsonl holds."""
    rows = [row for _, row, _ in jsonl.lines(path)] if path.exists() else []
    losses = [row["loss"] for row in rows if row["event"] == "train"]
    return losses[-1] if losses else None, {row["step"]: row["metrics"] for row in rows if row["event"] == "eval"}
