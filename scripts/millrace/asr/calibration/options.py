"""What to calibrate, as plain values, and the flags of it: steps name these without loading torch."""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass, fields
from pathlib import Path

from millrace.asr.calibration.messages import Device
from millrace.asr.training import options as training
from millrace.asr.training.options import TrainOptions
from millrace.common.errors import MillraceError
from millrace.common.training.settings import LoopSettings, flag_names


@dataclass(frozen=True)
class Choices:
    """What to calibrate, for which training, within which limits; see the flags of calibrate_bucket_bs."""

    bucket_config: Path
    options: TrainOptions
    settings: LoopSettings
    bucket: str = ""
    max_memory_gb: float = 0.0
    headroom: float = 0.1
    start_bs: int = 32
    min_bs: int = 1
    max_bs: int = 4096
    steps: int = 5
    soak_steps: int = 200
    world_size: int = 1

    def __post_init__(self) -> None:
        limits = {
            "max_memory_gb": (0 <= self.max_memory_gb < math.inf, "0 or more"),
            "headroom": (0 <= self.headroom < 1, "at least 0 and below 1"),
            "steps": (self.steps >= 2, "at least 2: the optimiser's state is there from the second on"),
            "soak_steps": (self.soak_steps >= 0, "0 or more"),
            "min_bs": (self.min_bs <= self.max_bs, "at most max_bs"),
        }
        for name, (fits, meaning) in limits.items():
            if not fits:
                problem = f"{name} must be {meaning}, not {getattr(self, name)}"
                raise MillraceError(problem, where="calibration")

    @classmethod
    def from_args(cls, args: argparse.Namespace) -> Choices:
        """The choices that the flags of a step made."""
        chosen = {field.name: getattr(args, field.name) for field in fields(cls) if hasattr(args, field.name)}
        options = TrainOptions.from_args(args, bucket_dir=str(args.bucket_config.parent))
        return cls(**chosen, options=options, settings=LoopSettings.from_args(args))

    def limit_gb(self, device: Device) -> float:
        """The given limit, or what the headroom leaves of the device."""
        limit, memory = self.max_memory_gb or device["memory_gb"] * (1 - self.headroom), device["memory_gb"]
        if not limit > 0:
            raise MillraceError("the memory of this device is unknown", remedy="Set --max-memory-gb")
        if memory and limit > memory:
            remedy = "Lower --max-memory-gb; some of the memory must stay free"
            raise MillraceError(f"{limit:g} GB is more than {device['name']} has: {memory:g} GB", "", remedy)
        return limit


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags that calibrate_bucket_bs and verify_calibration share."""
    parser.add_argument("--bucket-config", type=Path, required=True, help="bucket_config.json")
    parser.add_argument("--output", type=Path, required=True, help="output: JSON")
    training.add_arguments(
        parser, ("model", "model_path", "model_options", "num_workers", "max_bad_fraction")
    )
    parser.set_defaults(num_workers=0)
    parser.add_argument(
        "--device", type=_device, default="auto", help="auto, cpu or cuda: calibrate on the device itself"
    )
    LoopSettings.add_arguments(parser, ("precision", "gradient_checkpointing", "grad_acc", "seed"))
    for name, kind, text in (
        ("max_memory_gb", float, "limit of the peak, GB; 0: what --headroom leaves"),
        ("headroom", float, "share of the device left free without a limit"),
        ("soak_steps", int, "steps of the soak"),
    ):
        parser.add_argument(*flag_names(name), type=kind, default=getattr(Choices, name), help=text)


def _device(name: str) -> str:
    if name not in ("auto", "cpu", "cuda"):
        raise argparse.ArgumentTypeError(
            f"{name!r} is none of auto, cpu, cuda: calibrate on the device itself"
        )
    return name
