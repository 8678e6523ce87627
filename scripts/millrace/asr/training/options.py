"""What an ASR run reads and how, with defaults: seconds of a batch, workers, open tars, rows that
are evaluated; and the flags, which steps name without loading torch."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from millrace.common import cli, settings
from millrace.common.settings import loader_setting, setting

# `baseline` is what fine-tuning scripts do, to compare with. `every-bucket` is `bucketed` with a
# step of every bucket first, for a short check.
LOADERS = ("bucketed", "baseline", "every-bucket")


@dataclass(frozen=True)
class TrainOptions:
    """The choices of train_model's flags of the same names; see its --help.

    `calibration` is calibrated_bs.json; without it a batch holds `batch_seconds` of padded audio.
    """

    bucket_dir: str
    calibration: str | None = None
    model: str = "ctc"
    model_options: Mapping[str, Any] = field(default_factory=dict)
    batch_seconds: float = loader_setting(
        240.0, "padded seconds of a batch that is not calibrated", above=0
    )
    window: int = loader_setting(
        20_000, "rows sorted by duration at a time", at_least=1, in_config=False
    )
    num_workers: int = loader_setting(2, "reading and decoding processes of each rank", at_least=0)
    prefetch_factor: int = loader_setting(4, "batches ahead of each worker", at_least=1)
    max_open_tars: int = loader_setting(64, "open tars of each process", at_least=1)
    max_bad_fraction: float = loader_setting(
        0.01, "share of unusable samples allowed", at_least=0, at_most=1
    )
    eval_samples: int = setting(
        1000, "rows of dev and test that are evaluated, at most", at_least=1
    )
    seed: int = 42
    eval_file: str = ""  # the rows of dev, if they are not those of `bucket_dir`
    loader: str = setting("bucketed", "others only to compare with", among=LOADERS, in_config=False)

    def __post_init__(self) -> None:
        settings.check(self, "training options")


def add_arguments(parser: argparse.ArgumentParser, names: Collection[str] = ()) -> None:
    """Add the model's flags, and those of the settings, or of `names` among them."""
    add = parser.add_argument
    add(
        "--model",
        "--model-path",
        "--model_path",
        default=TrainOptions.model,
        help="name of a model, or a folder that holds one",
    )
    add(
        "--model-options",
        type=cli.json_object,
        default={},
        help="JSON object of the model's options",
    )
    settings.add_arguments(parser, TrainOptions, names)
