"""What one rank has seen since the last line of the log."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from scripts.common.meters import Clock, Meters, figures, merged
from scripts.common.ranks import Exchange
from scripts.common.task import Share


class Window:
    """Sums of losses, weights and counts, and the clock. The loss stays on the device, so that nothing waits for it."""

    def __init__(self, device: torch.device) -> None:
        self.clock, self.meters, self.weight = Clock(device.type), Meters(), 0.0
        self._loss = torch.zeros((), dtype=torch.float64, device=device)

    def add(self, loss: torch.Tensor, share: Share) -> None:
        """Count a batch and its mean loss."""
        if share.weight:
            self._loss += loss.detach().double() * share.weight
        self.weight += share.weight
        self.meters.add({"samples": len(share.ids), **share.counts})

    def close(self, exchange: Exchange) -> dict[str, Any]:
        """The figures of all ranks (`loss` is None where nothing had weight); begins the next window."""
        parts = exchange.gathered((float(self._loss), self.weight, self.meters.sums))
        weight = math.fsum(part[1] for part in parts)
        loss = math.fsum(part[0] for part in parts) / weight if weight else None
        found = {"loss": loss, "weight": weight, **figures(merged([part[2] for part in parts]), self.clock.seconds())}
        self._loss.zero_()
        self.weight = 0.0
        self.meters.clear()
        self.clock.restart()
        return found

    def state_dict(self) -> dict[str, float]:
        """The loss so far. Counts and times belong to the process: rates are not those of two runs mixed."""
        return {"loss": float(self._loss), "weight": self.weight}

    def load(self, parts: Sequence[dict[str, float]]) -> None:
        """Take up the sum of states."""
        self._loss.fill_(math.fsum(part["loss"] for part in parts))
        self.weight = math.fsum(part["weight"] for part in parts)
