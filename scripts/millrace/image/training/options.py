"""The flags of an image run with their defaults, as PyTorch's ImageNet example has them, and those
of the example that are refused."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

from millrace.common import settings
from millrace.common.errors import MillraceError
from millrace.common.settings import loader_setting, setting
from millrace.common.training.settings import DEVICES, PRECISIONS, LoopSettings
from millrace.image.models.resnet import ARCHITECTURES

PRODUCERS = ("none", "child")
AUGMENTATIONS = ("crop_flip", "crop", "none")
# Short and other names of the example's flags.
_NAMES = {
    "arch": ["-a"],
    "workers": ["-j"],
    "batch_size": ["-b"],
    "print_freq": ["-p"],
}
_NAMES |= {"lr": ["--learning-rate"], "weight_decay": ["--wd"]}
_TORCHRUN = "Start one process per GPU: python -m millrace.common.training.launch --standalone "
_TORCHRUN += (
    "--nproc-per-node N -m millrace.image.train_active ..., or torchrun with the same flags"
)
_PRETRAINED = "Weights are random here: no model is downloaded. Leave it out"
_START = "A run goes on from its newest checkpoint by itself: give the same command again"
_EVALUATE = "Each epoch is evaluated: metrics.jsonl and metrics.json have the figures of val"
_OF_RANKS = ("gpu", "world-size", "rank", "dist-url", "dist-backend", "multiprocessing-distributed")
_REFUSED = {
    **dict.fromkeys(_OF_RANKS, _TORCHRUN),
    "pretrained": _PRETRAINED,
    "start-epoch": _START,
    "resume": _START,
    "evaluate": _EVALUATE,
}


@dataclass(frozen=True)
class TrainOptions:
    """What differs from the example: `workers` and `batch_size` are those of a node, as there, but
    several ranks share them under torchrun."""

    arch: str = setting("resnet18", "the model", among=tuple(ARCHITECTURES))
    workers: int = loader_setting(4, "reading processes of a node", at_least=0)
    epochs: int = setting(90, "passes over the data", at_least=1)
    batch_size: int = loader_setting(
        256, "images of a step, on all ranks of a node together", at_least=1
    )
    lr: float = setting(0.1, "first learning rate of SGD", above=0)
    decay_epochs: int = setting(
        30, "epochs after which the learning rate is divided by 10", at_least=1
    )
    momentum: float = setting(0.9, "momentum of SGD", at_least=0, below=1, in_config=False)
    weight_decay: float = setting(1e-4, "weight decay of all weights", at_least=0)
    print_freq: int = setting(10, "steps between lines", at_least=1)
    save_steps: int = setting(500, "steps between checkpoints inside an epoch; 0: none", at_least=0)
    augment: str = loader_setting(
        "crop_flip", "random resized crops and flips of train", among=AUGMENTATIONS
    )
    mixed_batches: int = loader_setting(
        4, "neighbouring batches of a worker that are shuffled", at_least=1
    )
    precision: str = setting("32-true", "number format of the training", among=PRECISIONS)
    device: str = setting("auto", "auto: a GPU where there is one", among=DEVICES)
    log_ids: int = setting(
        0,
        "1: write the ids of every step to sample_ids.<rank>.jsonl",
        at_least=0,
        in_config=False,
    )
    timeout_seconds: float = setting(
        600.0, "how long a rank waits for another one", above=0, in_config=False
    )
    seed: int = setting(
        42, "seed of weights, crops and the order in memory", at_least=0, in_config=False
    )

    def __post_init__(self) -> None:
        settings.check(self, "training options")

    def loop_settings(self) -> LoopSettings:
        """The settings of the shared loop: SGD is the task's, every epoch is saved and
        evaluated."""
        same = (
            "epochs",
            "lr",
            "weight_decay",
            "save_steps",
            "precision",
            "device",
            "log_ids",
            "seed",
        )
        chosen = {name: getattr(self, name) for name in (*same, "timeout_seconds")}
        fixed: dict[str, Any] = {
            "lr_scheduler_type": "constant",
            "warmup_ratio": 0.0,
            "max_grad_norm": 0.0,
        }
        return LoopSettings(**chosen, **fixed, log_steps=self.print_freq)


class _Refused(argparse.Action):
    def __call__(
        self, parser: object, namespace: object, values: object, name: str | None = None
    ) -> None:
        raise MillraceError(f"{name} is not taken", "train_active", self.const)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The example's flags, as typed there, and ours."""
    for name, remedy in _REFUSED.items():
        parser.add_argument(
            f"--{name}", action=_Refused, nargs="?", const=remedy, help=argparse.SUPPRESS
        )
    settings.add_arguments(parser, TrainOptions, also=_NAMES)
