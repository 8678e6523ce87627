"""The choices of a calibration and their defaults: memory limit, first, smallest and largest batch,
steps of a trial and of a soak. Steps name them without loading torch."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from millrace.asr.calibration.search import Device
from millrace.asr.training import options as training
from millrace.common import settings
from millrace.common.errors import MillraceError
from millrace.common.settings import setting
from millrace.common.training.settings import LoopSettings

FOLDER = "results/asr/calibration"  # where the workflow keeps what it finds


@dataclass(frozen=True)
class Choices:
    """What to calibrate, for which training, within which limits; see the flags of
    calibrate_bucket_bs."""

    bucket_config: Path
    options: training.TrainOptions
    settings: LoopSettings
    bucket: str = ""
    max_memory_gb: float = setting(
        0.0, "limit of the peak, GB; 0: nine tenths of the device", at_least=0
    )
    start_bs: int = setting(32, "batch size of the first trial", at_least=1, in_config=False)
    min_bs: int = setting(1, "smallest batch size worth training", at_least=1, in_config=False)
    max_bs: int = setting(4096, "largest batch size to try", at_least=1)
    # From the second step on the optimiser's state is there.
    steps: int = setting(5, "training steps of a trial, at least 2", at_least=2, in_config=False)
    soak_steps: int = setting(200, "steps of the soak at the chosen size", at_least=0)
    world_size: int = setting(1, "ranks of the training", at_least=1, in_config=False)

    def __post_init__(self) -> None:
        settings.check(self, "calibration")
        if self.min_bs > self.max_bs:
            raise MillraceError(f"min_bs must be at most max_bs, not {self.min_bs}", "calibration")

    @classmethod
    def from_args(cls, args: argparse.Namespace) -> Choices:
        bucket_dir = str(args.bucket_config.parent)
        options = settings.from_args(training.TrainOptions, args, bucket_dir=bucket_dir)
        loop = settings.from_args(LoopSettings, args)
        return settings.from_args(cls, args, options=options, settings=loop)

    def limit_gb(self, device: Device) -> float:
        """The given limit, or nine tenths of the device."""
        memory = device["memory_gb"]
        limit = self.max_memory_gb or memory * 0.9
        if limit > memory:
            remedy = "Lower --max-memory-gb; some of the memory must stay free"
            raise MillraceError(
                f"{limit:g} GB is more than {device['name']} has: {memory:g} GB", "", remedy
            )
        return limit


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags that calibrate_bucket_bs and verify_calibration share."""
    buckets = Path("results/asr/buckets/bucket_config.json")
    parser.add_argument(
        "--bucket-config",
        type=Path,
        default=buckets,
        help="bucket_config.json",
    )
    output = (
        f"output: JSON (default: {FOLDER}/buckets/<bucket>.json, or verification.json in {FOLDER})"
    )
    parser.add_argument(
        "--output",
        type=Path,
        help=output,
    )
    calibration = f"the merged file, to be verified (default: {FOLDER}/calibrated_bs.json)"
    parser.add_argument("--calibration", help=calibration)
    training.add_arguments(parser, ("num_workers", "max_bad_fraction"))
    parser.set_defaults(num_workers=0)
    parser.add_argument(
        "--device",
        choices=["auto", "cpu", "cuda"],
        default="auto",
        help="calibrate on the device itself",
    )
    loop = ("precision", "gradient_checkpointing", "grad_acc", "seed")
    settings.add_arguments(parser.add_argument_group("training"), LoopSettings, loop)
    settings.add_arguments(parser, Choices, ("max_memory_gb", "soak_steps"))


def verification(args: argparse.Namespace) -> tuple[Choices, Path]:
    """What to verify, and where the result goes."""
    args.calibration = args.calibration or f"{FOLDER}/calibrated_bs.json"
    return Choices.from_args(args), args.output or Path(FOLDER, "verification.json")
