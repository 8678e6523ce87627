"""What an ASR run reads and how, as plain values, and their flags: steps name these without loading torch."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from millrace.common import cli
from millrace.common.training.settings import flag_names

# `baseline` is the naive pipeline, `ideal` repeats batches from memory: both are there to compare with.
LOADERS = ("bucketed", "baseline", "ideal")


@dataclass(frozen=True)
class TrainOptions:
    """The choices of train_model's flags of the same names; see its --help.

    `calibration` is calibrated_bs.json; without it a batch holds `batch_seconds` of padded audio.
    """

    bucket_dir: str
    calibration: str | None = None
    model: str = "ctc"
    model_options: Mapping[str, Any] = field(default_factory=dict)
    batch_seconds: float = 240.0
    window: int = 20_000
    num_workers: int = 2
    prefetch_factor: int = 4
    max_open_tars: int = 64
    max_bad_fraction: float = 0.01
    eval_samples: int = 1000
    seed: int = 42
    loader: str = "bucketed"

    @classmethod
    def from_args(cls, args: argparse.Namespace, **changes: Any) -> TrainOptions:
        """The choices that the flags of a step made, with `changes`."""
        chosen = {field.name: getattr(args, field.name) for field in fields(cls) if hasattr(args, field.name)}
        return cls(**{**chosen, "model": args.model_path or args.model, **changes})


_FLAGS = {
    "model": (str, "name of a model, or a folder that holds one"),
    "model_path": (str, "the same as --model, in its older spelling"),
    "model_options": (cli.json_object, "JSON object of the model's options"),
    "num_workers": (cli.count, "reading and decoding processes of each rank"),
    "max_bad_fraction": (float, "share of unusable samples allowed"),
    "batch_seconds": (cli.positive_float, "padded seconds of a batch without --calibration"),
    "window": (cli.positive_int, "rows sorted by duration at a time"),
    "prefetch_factor": (cli.positive_int, "batches ahead of each worker"),
    "max_open_tars": (cli.positive_int, "open tars of each process"),
    "eval_samples": (cli.positive_int, "rows of dev and test, at most"),
    "loader": (str, "others only to compare with"),
}


def add_arguments(parser: argparse.ArgumentParser, names: Collection[str] = tuple(_FLAGS)) -> None:
    """Add the flags of `names`."""
    for name in names:
        kind, text = _FLAGS[name]
        default = {} if name == "model_options" else getattr(TrainOptions, name, "")
        choices = LOADERS if name == "loader" else None
        parser.add_argument(*flag_names(name), type=kind, default=default, choices=choices, help=text)
