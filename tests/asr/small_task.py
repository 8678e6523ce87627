"""A task of the training loop that learns next to nothing from real audio, to test what measures a
run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from millrace.asr.loading.collate import Batch
from millrace.common.training import meters
from millrace.common.training.task import Task


class Loudness(nn.Module):
    """Two layers over the mean power of clips."""

    def __init__(self) -> None:
        super().__init__()
        self.power = nn.Identity()
        self.layers = nn.ModuleList([nn.Linear(1, 8), nn.Linear(8, 8)])
        self.head = nn.Linear(8, 1)

    def forward(self, audio: torch.Tensor) -> torch.Tensor:
        with meters.part("power"):
            hidden = self.power(audio.square().mean(dim=1, keepdim=True))
        for layer in self.layers:
            hidden = torch.relu(layer(hidden))
        return self.head(hidden).squeeze(1)


class SmallTask(Task):
    """`make(epoch, start_step)` gives the batches, `steps` of them in an epoch."""

    def __init__(self, make: Callable[[int, int], Iterable[Batch]], steps: int) -> None:
        self.make, self.steps = make, steps

    def build_model(self) -> nn.Module:
        return Loudness()

    def steps_per_epoch(self, epoch: int, world_size: int, spans: tuple = ()) -> int:
        return self.steps

    def loader(
        self, epoch: int, start_step: int, rank: int, world_size: int, spans: tuple = ()
    ) -> Iterable[Batch]:
        return self.make(epoch, start_step)

    def batch_ids(self, batch: Batch) -> np.ndarray:
        return batch.sample_ids

    def training_step(self, model: nn.Module, batch: Batch) -> tuple[torch.Tensor, float, Mapping]:
        seconds, padded = float(batch.lengths.sum()) / 16_000, batch.audio.numel() / 16_000
        counts = {"audio_seconds": seconds, "padded_audio_seconds": padded}
        return model(batch.audio).square().mean(), float(len(batch)), counts

    def evaluate(self, model: nn.Module, fabric: Any) -> dict[str, float]:
        return {"loss": 0.5}

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass
