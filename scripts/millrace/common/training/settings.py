"""The choices of a training run that all lanes share, and their flags."""

from __future__ import annotations

import argparse
import math
from collections.abc import Collection
from dataclasses import dataclass, fields

from millrace.common.errors import MillraceError
from millrace.common.training.schedule import KINDS

PRECISIONS = ("32-true", "bf16-mixed", "16-mixed", "bf16-true")


@dataclass(frozen=True)
class LoopSettings:
    """Steps are optimiser steps: `grad_acc` batches of every rank, all samples with one weight."""

    epochs: int = 1
    max_steps: int = 0
    grad_acc: int = 1
    lr: float = 2e-5
    lr_scheduler_type: str = "cosine"
    warmup_ratio: float = 0.02
    warmup_steps: int = 0
    min_lr_ratio: float = 0.0
    weight_decay: float = 0.0
    adam_beta1: float = 0.9
    adam_beta2: float = 0.999
    adam_epsilon: float = 1e-8
    max_grad_norm: float = 1.0
    precision: str = "32-true"
    gradient_checkpointing: int = 0
    find_unused_parameters: int = 0
    log_steps: int = 10
    save_steps: int = 500
    save_total_limit: int = 3
    eval_steps: int = 0
    eval_at_start: int = 0
    seed: int = 42
    log_ids: int = 0
    tensorboard: int = 1
    device: str = "auto"
    timeout_seconds: float = 600.0

    def __post_init__(self) -> None:
        at_least = {
            **dict.fromkeys(("epochs", "grad_acc", "log_steps"), 1),
            **dict.fromkeys(
                ("max_steps", "warmup_steps", "save_steps", "save_total_limit", "eval_steps", "lr"), 0
            ),
            **dict.fromkeys(("weight_decay", "max_grad_norm", "adam_epsilon", "seed"), 0),
        }
        for name, least in at_least.items():
            self._check(
                name, math.isfinite(getattr(self, name)) and getattr(self, name) >= least, f"at least {least}"
            )
        for name in ("warmup_ratio", "min_lr_ratio"):
            self._check(name, 0 <= getattr(self, name) <= 1, "0 to 1")
        for name in ("adam_beta1", "adam_beta2"):
            self._check(name, 0 <= getattr(self, name) < 1, "at least 0 and below 1")
        self._check("timeout_seconds", 0 < self.timeout_seconds < math.inf, "above 0")
        self._check("precision", self.precision in PRECISIONS, f"one of {', '.join(PRECISIONS)}")
        self._check("lr_scheduler_type", self.lr_scheduler_type in KINDS, f"one of {', '.join(KINDS)}")
        self._check("device", self.device in ("auto", "cpu", "cuda"), "one of auto, cpu, cuda")

    def _check(self, name: str, fits: bool, meaning: str) -> None:
        if not fits:
            raise MillraceError(
                f"{name} must be {meaning}, not {getattr(self, name)!r}", where="training settings"
            )

    @property
    def length(self) -> dict:
        """The settings that fix where the learning-rate schedule begins and ends."""
        names = ("epochs", "max_steps", "lr_scheduler_type", "warmup_ratio", "warmup_steps", "min_lr_ratio")
        return {name: getattr(self, name) for name in names}

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser, names: Collection[str] = ()) -> None:
        """Add a flag for every setting, or for those in `names`."""
        choices = {"lr_scheduler_type": KINDS, "precision": PRECISIONS, "device": ("auto", "cpu", "cuda")}
        group = parser.add_argument_group("training")
        for field in fields(LoopSettings):
            if names and field.name not in names:
                continue
            kind = {"int": int, "float": float, "str": str}[field.type]
            group.add_argument(
                *flag_names(field.name),
                type=kind,
                default=field.default,
                choices=choices.get(field.name),
                help=HELP[field.name],
            )

    @classmethod
    def from_args(cls, args: argparse.Namespace) -> LoopSettings:
        """The settings that the flags of `add_arguments` gave."""
        names = [field.name for field in fields(cls) if hasattr(args, field.name)]
        return cls(**{name: getattr(args, name) for name in names})


def flag_names(name: str) -> list[str]:
    """The flag of a choice, with hyphens, and the spelling of the original scripts if they have it."""
    flag = f"--{name}"
    return [flag.replace("_", "-"), *([flag] if "_" in name and name in ORIGINAL_NAMES else [])]


# Flags that the original scripts have, with underscores.
ORIGINAL_NAMES = frozenset(
    (
        *("model_path", "bucket_dir", "output_dir", "max_steps", "lr_scheduler_type", "warmup_ratio"),
        *("gradient_checkpointing", "log_steps", "save_steps", "save_total_limit", "eval_steps"),
        *("num_workers", "prefetch_factor", "max_open_tars", "profile_steps"),
        *("start_bs", "min_bs", "max_memory_gb"),
    )
)
HELP = {
    "epochs": "passes over the data; ignored if --max-steps is set",
    "max_steps": "optimiser steps of the whole run; 0: as many as --epochs has",
    "grad_acc": "batches of every rank that make one optimiser step",
    "lr": "peak learning rate of AdamW",
    "lr_scheduler_type": "learning rate after the warm-up",
    "warmup_ratio": "share of all steps that warms up",
    "warmup_steps": "steps that warm up; above 0 it replaces --warmup-ratio",
    "min_lr_ratio": "share of the learning rate that is left at the end",
    "weight_decay": "decoupled weight decay of matrices; biases and norms have none",
    "adam_beta1": "decay of the first moment",
    "adam_beta2": "decay of the second moment",
    "adam_epsilon": "added to the root of the second moment",
    "max_grad_norm": "the gradient's norm is clipped to this; 0: not clipped",
    "precision": "number format of the training",
    "gradient_checkpointing": "1: compute activations again in the backward pass, for less memory",
    "find_unused_parameters": "1: allow parameters that take no part in a step (slower)",
    "log_steps": "steps between lines of metrics.jsonl",
    "save_steps": "steps between checkpoints; 0: only at the end and when stopped",
    "save_total_limit": "newest checkpoints that are kept; 0: all",
    "eval_steps": "steps between evaluations; 0: only at the end",
    "eval_at_start": "1: evaluate the untrained model too",
    "seed": "seed of everything random",
    "log_ids": "1: write the sample ids of every step to sample_ids.<rank>.jsonl",
    "tensorboard": "1: write TensorBoard events",
    "device": "auto: a GPU where there is one",
    "timeout_seconds": "how long a rank waits for the others before it gives up",
}
