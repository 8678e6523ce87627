"""What a lane brings to the training loop: model, loss, batches, metrics."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence, Sized
from typing import Any

import numpy as np
import torch
from torch import nn

from millrace.common.errors import MillraceError
from millrace.common.stopping import StopSignals
from millrace.common.training.ranks import Exchange

Spans = Sequence[tuple[int, int]]


class Task:
    """A lane's training task. An epoch's plan is a pure function of (seed, epoch, world size,
    spans).

    A lane brings all methods up to `load_state_dict`; the others, and these values, as it needs
    them.
    """

    every_epoch = False  # save, evaluate and write a line at the end of every epoch too
    keeps_weights = True  # a checkpoint of the end, and that of the best evaluation
    # Set by the loop, for a loader that waits long (see StopSignals.leave).
    stop: StopSignals | None = None
    exchange = Exchange(1)  # between the ranks; set by the loop
    _loader: Any = None  # whose workers outlive epochs

    def build_model(self) -> nn.Module:
        """The untrained model, on the host; generators are seeded, the same on every rank."""
        raise NotImplementedError

    def plan(self, epoch: int, world_size: int, spans: Spans = ()) -> Sized:
        """The plan of an epoch, or of what is left after `spans` (see Position), as long as its
        steps."""
        raise NotImplementedError

    def loader(
        self, epoch: int, start_step: int, rank: int, world_size: int, spans: Spans = ()
    ) -> Iterable[Any]:
        """The batches of a rank from `start_step` on: exactly `steps_per_epoch(...) - start_step`.

        A batch may be empty. `to(device, non_blocking=True)` moves it to a GPU.
        """
        raise NotImplementedError

    def batch_ids(self, batch: Any) -> np.ndarray:
        """The ids of the batch's samples; none for an empty batch or a filler, which has no
        loss."""
        raise NotImplementedError

    def training_step(
        self, model: nn.Module, batch: Any
    ) -> tuple[torch.Tensor, float, Mapping[str, float]]:
        """(loss, weight, counts): the loss is the mean over `weight` units (samples, tokens, ...).

        The update is that of the mean over the units of all ranks and accumulated batches, however
        they are split. `weight` is a number of the host: reading it from a device would stop the
        device. Counts are summed over ranks, see meters.figures (`audio_seconds`,
        `padded_audio_seconds`, ...).
        """
        raise NotImplementedError

    def evaluate(self, model: nn.Module, fabric: Any) -> dict[str, float]:
        """Metrics of held-out data, called on every rank without gradients; rank 0's count."""
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        """Tensors and plain values that tell whether the plan is still the same (a digest of its
        inputs)."""
        raise NotImplementedError

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Raises MillraceError where the plan would now be another one."""

    def steps_per_epoch(self, epoch: int, world_size: int, spans: Spans = ()) -> int:
        """Steps (batches per rank) of the plan, the same on every rank."""
        return len(self.plan(epoch, world_size, spans))

    def batch_loader(self, rank: int) -> Any:
        """What reads the batches of all plans on this rank, of a task that is audited."""
        raise NotImplementedError

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer | None:
        """The optimiser; None: AdamW by the loop's settings."""

    def rate_factor(self, epoch: int) -> float:
        """By which the learning rate is multiplied beside the schedule."""
        return 1.0

    def score(self, metrics: Mapping[str, float]) -> float | None:
        """Of an evaluation: that of the lowest is kept as checkpoints/best; None: nothing is
        better."""

    def observe(self, metrics: dict[str, float]) -> str:
        """Called on every rank after an evaluation, and after a resume with all before it in order;
        a reason ends the run."""
        return ""

    def rank_state(self) -> dict[str, Any]:
        """What is saved of this rank."""
        return {}

    def load_rank_states(self, states: list[dict[str, Any]]) -> None:
        """Take up the rank's own state, or all of them on rank 0 if the number of ranks has
        changed."""

    def close(self) -> None:
        """End the workers."""
        if hasattr(self._loader, "close"):
            self._loader.close()


class MicroBatch:
    """One batch on its way through the model; the model's side fills in `weight` and `counts`.

    No dataclass, tuple or dict: wrapped modules copy those, and cast the tensors inside
    (half-precision waveforms give wrong features).
    """

    def __init__(self, batch: Any, ids: np.ndarray) -> None:
        self.batch = batch
        self.ids = ids
        self.weight = 0.0
        self.counts: Mapping[str, float] = {}


class TrainingStep(nn.Module):
    """Model and loss as one module: every rank takes part in a step, also with an empty batch."""

    def __init__(self, task: Task, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self._training_step = task.training_step

    def forward(self, batch: MicroBatch) -> torch.Tensor:
        """The mean loss; fills in weight and counts. 0 from all parameters for an empty batch."""
        if len(batch.ids):
            loss, weight, batch.counts = self._training_step(self.model, batch.batch)
            batch.weight = float(weight)
            if not (math.isfinite(batch.weight) and batch.weight >= 0):
                raise MillraceError(
                    f"the weight of a batch is {batch.weight}", f"samples {batch.ids[:5]}"
                )
            if batch.weight > 0:
                return loss
        # The others wait for this rank's gradients: give zeros, not nothing, and not 0 * nan.
        sums = [part.sum().float() for part in self.parameters() if part.requires_grad]
        return torch.stack(sums).sum() * 0.0


def weights_digest(model: nn.Module) -> int:
    """A sum of the bits of all parameters: equal weights have equal digests."""
    kinds = {
        1: torch.int8,
        2: torch.int16,
        4: torch.int32,
        8: torch.int64,
    }
    total = torch.zeros((), dtype=torch.int64)
    for number, parameter in enumerate(model.parameters(), 1):
        flat = parameter.detach().reshape(-1)
        bits = flat.view(kinds[parameter.element_size()])
        total += number * bits.sum(dtype=torch.int64).cpu()
    return int(total)
