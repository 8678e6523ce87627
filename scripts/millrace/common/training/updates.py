"""Updates of the weights, the same whatever the split into ranks and accumulated batches: AdamW,
which weights decay, clipping, gradients that are not finite."""

from __future__ import annotations

import math
from typing import Any

import torch
from lightning_fabric import Fabric

from millrace.common.errors import MillraceError
from millrace.common.training import seeding
from millrace.common.training.settings import LoopSettings
from millrace.common.training.task import MicroBatch, Task, TrainingStep


class Updates:
    """The model, its optimiser (AdamW, or the task's), and the way from losses to new weights.

    Every rank calls `add` for the same number of batches, then `apply`. Gradients end up as those
    of sum(loss * weight) / sum(weight) over the batches of all ranks.
    """

    def __init__(self, task: Task, settings: LoopSettings, fabric: Fabric) -> None:
        self.settings = settings
        self.fabric = fabric
        self.device = fabric.device
        seeding.seed_all(settings.seed, "model")
        self.model = task.build_model()
        if settings.gradient_checkpointing:
            self.model.gradient_checkpointing_enable()
        self.model.train()
        self.wrapped = fabric.setup_module(TrainingStep(task, self.model))
        self.optimizer = fabric.setup_optimizers(task.optimizer(self.model) or self._adam())
        self._base_lrs = [group["lr"] for group in self.optimizer.param_groups]
        # Losses are divided by about the mean weight of a batch, which keeps half-precision
        # gradients in range. A power of two, so that it cancels exactly.
        self._scale = 1.0
        self._infinite = torch.zeros((), dtype=torch.bool, device=self.device)
        self._checked_step = 0
        self._norm: torch.Tensor | None = None

    def _adam(self) -> torch.optim.AdamW:
        settings = self.settings
        return torch.optim.AdamW(
            self._parameter_groups(),
            lr=settings.lr,
            # With a scaler, a fused step would unscale for itself, and the gradients could not be
            # clipped.
            fused=True if self.device.type == "cuda" and settings.precision != "16-mixed" else None,
        )

    def _parameter_groups(self) -> list[dict[str, Any]]:
        """Two groups: matrices with weight decay, vectors (biases, norms) without."""
        trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        if not trained:
            raise MillraceError(
                "the model has no parameter to train", remedy="Unfreeze a part of it"
            )
        matrices = [parameter for parameter in trained if parameter.ndim >= 2]
        vectors = [parameter for parameter in trained if parameter.ndim < 2]
        groups = [{"params": matrices, "weight_decay": self.settings.weight_decay}]
        groups += [{"params": vectors, "weight_decay": 0.0}]
        return [group for group in groups if group["params"]]

    @property
    def lr(self) -> float:
        """The first parameter group's learning rate at the last step; its base before the first."""
        return self.optimizer.param_groups[0]["lr"]

    @property
    def grad_norm(self) -> float | None:
        """The norm of the last gradient, before clipping. Waits for the device."""
        if self._norm is None:
            return None
        return float(self._norm)

    def forward(self, batch: MicroBatch, more: bool) -> torch.Tensor:
        """The mean loss of a batch; `more`: others follow before `apply`, so gradients can wait."""
        with self.fabric.no_backward_sync(self.wrapped, enabled=more):
            return self.wrapped(batch)

    def backward(self, loss: torch.Tensor, batch: MicroBatch, more: bool) -> None:
        with self.fabric.no_backward_sync(self.wrapped, enabled=more):
            self.fabric.backward(loss * (batch.weight / self._scale))

    def apply(self, total: float, batches: int, step: int, factor: float) -> None:
        """Optimiser step `step`; `total` is the weight of all ranks' batches, `factor` the
        rate's."""
        ranks = self.fabric.world_size
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        # DDP has averaged over ranks; what is wanted is the sum.
        torch._foreach_mul_(gradients, ranks * self._scale / total)
        most = self.settings.max_grad_norm or math.inf
        clip = self.fabric.clip_gradients
        self._norm = clip(self.wrapped, self.optimizer, max_norm=most, error_if_nonfinite=False)
        # A scaler skips such steps. 16-mixed has none on a CPU, where Fabric takes bfloat16 for it.
        if getattr(self.fabric.strategy.precision, "scaler", None) is None:
            self._infinite |= ~torch.isfinite(self._norm)
            if self.device.type == "cpu":
                self.check_finite(step)
        for group, base in zip(self.optimizer.param_groups, self._base_lrs, strict=True):
            group["lr"] = base * factor
        self.optimizer.step()
        self._scale = 2.0 ** round(math.log2(total / (batches * ranks)))

    def clear(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)

    def check_finite(self, step: int) -> None:
        """Raise where a gradient was not finite, before such weights can be saved. Waits for the
        device."""
        if bool(self._infinite):
            problem = (
                f"the gradient is not finite (after step {self._checked_step}, by step {step})"
            )
            remedy = "Lower lr or max_grad_norm, or look at the samples of these steps (log_ids). "
            raise MillraceError(problem, remedy=remedy + "The checkpoints before are good")
        self._checked_step = step

    def state_dict(self) -> dict[str, Any]:
        """All that `load_state_dict` needs, as tensors and plain values."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "precision": self.fabric.strategy.precision.state_dict(),
            "scale": self._scale,
        }

    def load_state_dict(self, state: dict[str, Any], step: int) -> None:
        """Take up the state at `step`; raises MillraceError where it is of another model."""
        try:
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
        except (RuntimeError, ValueError) as error:
            problem = f"the checkpoint is of another model ({' '.join(str(error).split())[:300]})"
            remedy = "Train in another folder, or set the model of the checkpoint"
            raise MillraceError(problem, remedy=remedy) from error
        self.fabric.strategy.precision.load_state_dict(state["precision"])
        self._scale = state["scale"]
        self._checked_step = step
