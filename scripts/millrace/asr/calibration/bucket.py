"""The calibration of one bucket as a file: made when its key is new, kept otherwise."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from millrace.asr.calibration import key as calibration_key
from millrace.asr.calibration import known_devices, trial, worst_case
from millrace.asr.calibration import search as calibration
from millrace.common import atomic
from millrace.common.errors import MillraceError


@dataclass(frozen=True)
class Choices:
    """What to calibrate, for which training, within which limits; see the flags of calibrate_bucket_bs."""

    bucket_config: Path
    bucket: str = ""
    model: str = "ctc"
    model_options: Mapping[str, Any] = field(default_factory=dict)
    precision: str = "32-true"
    gradient_checkpointing: int = 0
    grad_acc: int = 1
    max_memory_gb: float = 0.0
    headroom: float = 0.1
    start_bs: int = 32
    min_bs: int = 1
    max_bs: int = 4096
    steps: int = 5
    soak_steps: int = 200
    device: str = "auto"
    world_size: int = 1
    num_workers: int = 0
    max_bad_fraction: float = 0.01
    seed: int = 42

    def __post_init__(self) -> None:
        wrong = [
            ("max_memory_gb", self.max_memory_gb, 0 <= self.max_memory_gb < float("inf"), "0 or more"),
            ("headroom", self.headroom, 0 <= self.headroom < 1, "at least 0 and below 1"),
            (
                "steps",
                self.steps,
                self.steps >= 2,
                "at least 2: the optimiser's state is there from the second on",
            ),
            ("soak_steps", self.soak_steps, self.soak_steps >= 0, "0 or more"),
            ("min_bs", self.min_bs, self.min_bs <= self.max_bs, "at most max_bs"),
        ]
        for name, value, fits, meaning in wrong:
            if not fits:
                raise MillraceError(f"{name} must be {meaning}, not {value}", where="calibration")

    @classmethod
    def from_flags(cls, flags: Mapping[str, Any]) -> Choices:
        """The choices that the step's flags make."""
        chosen = {name: flags[name] for name in cls.__dataclass_fields__}
        return cls(**{**chosen, "model": flags["model_path"] or flags["model"]})

    @property
    def options(self) -> dict[str, Any]:
        """TrainOptions of a trial."""
        names = ("model", "num_workers", "max_bad_fraction", "seed")
        chosen = {name: getattr(self, name) for name in names}
        return {
            "bucket_dir": str(self.bucket_config.parent),
            "model_options": dict(self.model_options),
            **chosen,
        }

    def settings(self, kind: str) -> dict[str, Any]:
        """LoopSettings of a trial on a device of that kind."""
        names = ("precision", "gradient_checkpointing", "grad_acc", "seed")
        return {
            "device": kind if kind in ("cpu", "cuda") else "cpu",
            **{name: getattr(self, name) for name in names},
        }

    def limit_gb(self, device: Mapping[str, Any]) -> float:
        """The limit that was given, or what the headroom leaves of the device."""
        limit = self.max_memory_gb or device["memory_gb"] * (1 - self.headroom)
        if not limit > 0:
            raise MillraceError("the memory of this device is not known", remedy="Set --max_memory_gb")
        if device["memory_gb"] and limit > device["memory_gb"]:
            remedy = "Lower --max_memory_gb; some of the memory must stay free"
            raise MillraceError(
                f"{limit:g} GB is more than {device['name']} has: {device['memory_gb']:g} GB", "", remedy
            )
        return limit


def calibrate_bucket(choices: Choices, output: Path) -> tuple[dict[str, Any], bool]:
    """The calibration of a bucket, and whether an earlier one still holds. `output` is written.

    A bucket without rows is said to be `empty`, no more. Raises MillraceError where not even the smallest
    batch fits.
    """
    if choices.bucket in worst_case.empty_buckets(choices.bucket_config):
        found = {"bucket": choices.bucket, "empty": True}
        return found, not atomic.write_if_changed(output, atomic.json_bytes(found))
    case = worst_case.find(choices.bucket_config, choices.bucket, choices.max_bs)
    here = choices.device in known_devices.HERE
    asked = {"kind": "device", "device": choices.device}
    device = trial.ask(asked) if here else known_devices.facts(choices.device)
    limit, settings = choices.limit_gb(device), choices.settings(device["kind"])
    arguments = (
        device,
        choices.options,
        settings,
        limit,
        choices.world_size,
        choices.soak_steps if here else 0,
    )
    key, of_bucket = calibration_key.calibration_key(*arguments), calibration_key.bucket_key(case)
    # Snakemake removes an output before it runs its job again, so there is a second copy, one for each key.
    copy = output.parent / ".calibrated" / f"{output.stem}-{calibration_key.digest(key, of_bucket)}.json"
    for path in (output, copy):
        found = calibration_key.kept(path, key, of_bucket, case.rows, choices.max_bs)
        if found is not None:
            atomic.write_if_changed(output, atomic.json_bytes(found))
            return found, True
    request = {
        "options": choices.options,
        "settings": settings,
        "limit_gb": limit,
        "world_size": choices.world_size,
    }
    worst = functools.partial(
        _worst, {**request, "kind": "worst" if here else "estimate"}, case, choices.steps
    )
    soak = functools.partial(_soak, {**request, "bucket": case.number}, choices.soak_steps)
    search = calibration.Search(limit, case.rows, choices.start_bs, choices.min_bs, choices.max_bs)
    found = {
        "key": key,
        "bucket_key": of_bucket,
        "bucket": case.bucket,
        "measured": here,
        "rows": case.rows,
        "longest_seconds": case.longest_seconds,
        "shortest_seconds": case.shortest_seconds,
        "longest_characters": case.longest_characters,
        "grad_acc": choices.grad_acc,
        **calibration.calibrate(search, worst, soak if here and choices.soak_steps else None),
    }
    atomic.write_json(copy, found)
    atomic.write_json(output, found)
    return found, False


def _worst(request: Mapping[str, Any], case: worst_case.WorstCase, steps: int, rows: int) -> dict[str, Any]:
    numbers = {"audio_rows": case.audio_rows[:rows], "text_rows": case.text_rows[:rows]}
    return trial.ask({**request, **numbers, "rows": rows, "steps": steps})


def _soak(request: Mapping[str, Any], steps: int, rows: int) -> dict[str, Any]:
    return trial.ask({**request, "kind": "soak", "rows": rows, "steps": steps})
