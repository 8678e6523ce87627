"""What an ASR run reads and how, as plain values: steps name these choices without loading torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

# `baseline` is the naive pipeline, `ideal` repeats batches from memory: both are there to compare with.
LOADERS = ("bucketed", "baseline", "ideal")


@dataclass(frozen=True)
class TrainOptions:
    """The choices of train_model's flags of the same names; see its --help.

    `bucket_config` is calibrated_bs.json, or empty: then a batch holds `batch_seconds` of padded audio.
    """

    bucket_dir: str
    bucket_config: str = ""
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
