"""The settings of a training run that all lanes share, with their defaults: length, learning rate,
decay, clipping, precision, steps between checkpoints."""

from __future__ import annotations

from dataclasses import dataclass

from millrace.common import settings
from millrace.common.settings import setting
from millrace.common.training.schedule import KINDS

PRECISIONS = ("auto", "32-true", "bf16-mixed", "16-mixed", "bf16-true")
DEVICES = ("auto", "cpu", "cuda")
TF32 = ("none", "convolutions", "all")

# What is kept of a parameter while it trains: its weight, its gradient and two states of Adam.
_REGIMES = {
    "32-true": (
        "float32 weights, gradients and Adam states, 16 bytes a parameter, computed in float32"
    ),
    "bf16-mixed": (
        "float32 weights, gradients and Adam states, 16 bytes a parameter, computed in bfloat16"
    ),
    "16-mixed": (
        "float32 weights, gradients and Adam states, 16 bytes a parameter, computed in float16"
    ),
    "bf16-true": "bfloat16 weights, gradients and Adam states, 8 bytes a parameter",
}
_TF32_WORDS = {
    "none": "no TF32",
    "convolutions": "TF32 in convolutions, not in matrix products",
    "all": "TF32 in convolutions and matrix products",
}


@dataclass(frozen=True)
class LoopSettings:
    """Steps are optimiser steps: `grad_acc` batches of every rank, all samples with one weight."""

    epochs: int = setting(1, "passes over the data; ignored if --max-steps is set", at_least=1)
    max_steps: int = setting(
        0, "optimiser steps of the whole run; 0: as many as --epochs has", at_least=0
    )
    grad_acc: int = setting(1, "batches of every rank that make one optimiser step", at_least=1)
    lr: float = setting(2e-05, "peak learning rate of AdamW", at_least=0)
    lr_scheduler_type: str = setting("cosine", "learning rate after the warm-up", among=KINDS)
    warmup_ratio: float = setting(0.02, "share of all steps that warms up", at_least=0, at_most=1)
    weight_decay: float = setting(
        0.0, "decoupled weight decay of matrices; biases and norms have none", at_least=0
    )
    max_grad_norm: float = setting(
        1.0, "the gradient's norm is clipped to this; 0: not clipped", at_least=0
    )
    precision: str = setting(
        "auto",
        "number format; auto: bf16-mixed where the GPU has it, else 32-true",
        among=PRECISIONS,
    )
    tf32: str = setting(
        "convolutions",
        "what a GPU computes of float32 in TF32, faster and with 10 bits behind the point; as torch"
        " has it",
        among=TF32,
    )
    gradient_checkpointing: int = setting(
        0, "1: compute activations again in the backward pass, for less memory", at_least=0
    )
    find_unused_parameters: int = setting(
        0, "1: allow parameters that take no part in a step (slower)", at_least=0, in_config=False
    )
    log_steps: int = setting(10, "steps between lines of metrics.jsonl", at_least=1)
    save_steps: int = setting(
        500, "steps between checkpoints; 0: only at the end and when stopped", at_least=0
    )
    save_total_limit: int = setting(3, "newest checkpoints that are kept; 0: all", at_least=0)
    eval_steps: int = setting(0, "steps between evaluations; 0: only at the end", at_least=0)
    eval_at_start: int = setting(0, "1: evaluate the untrained model too", at_least=0)
    seed: int = setting(42, "seed of everything random", at_least=0, in_config=False)
    log_ids: int = setting(
        0, "1: write the sample ids of every step to sample_ids.<rank>.jsonl", at_least=0
    )
    tensorboard: int = setting(1, "1: write TensorBoard events", at_least=0)
    device: str = setting("auto", "auto: a GPU where there is one", among=DEVICES)
    timeout_seconds: float = setting(
        600.0, "how long a rank waits for the others before it gives up", above=0, in_config=False
    )

    def __post_init__(self) -> None:
        settings.check(self, "training settings")

    @property
    def length(self) -> dict:
        """The settings that fix where the learning-rate schedule begins and ends."""
        names = ("epochs", "max_steps", "lr_scheduler_type", "warmup_ratio")
        return {name: getattr(self, name) for name in names}


def regime(precision: str, tf32: str | None, on_gpu: bool) -> str:
    """What a precision keeps and computes in, in words; "" for one that is not known."""
    words = _REGIMES.get(precision, "")
    if precision == "32-true" and on_gpu and tf32 in _TF32_WORDS:
        words += f" ({_TF32_WORDS[tf32]})"
    return words
