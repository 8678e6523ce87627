"""What a calibration depends on: equal keys need no new one."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, TypedDict

from millrace.asr.calibration.messages import Answer, Device
from millrace.asr.calibration.options import Choices
from millrace.asr.calibration.worst_case import WorstCase
from millrace.asr.models.files import model_digest
from millrace.common import jsonl
from millrace.common.cli import log

# A part of the calibration key: raise it when trials measure something else than before.
VERSION = 1


class Calibration(TypedDict):
    """The file of a bucket. `limited_by`: memory, soak, rows or max_bs; `trials` have `rows` and `fits` too;
    `search` is the Search; `backed_off` the sizes that did not last a soak, and why."""

    key: dict[str, Any]
    bucket_key: dict[str, Any]
    bucket: str
    rows: int
    longest_seconds: float
    shortest_seconds: float
    longest_characters: int
    grad_acc: int
    batch_size: int
    limited_by: str
    peak_memory_gb: float
    search: dict[str, Any]
    trials: list[dict[str, Any]]
    soak: Answer | None
    backed_off: list[dict[str, Any]]


def calibration_key(device: Device, choices: Choices) -> dict[str, Any]:
    """What all buckets of a calibration share."""
    options, settings = choices.options, choices.settings
    return {
        "device": device["name"],
        "device_memory_gb": device["memory_gb"],
        "limit_gb": round(choices.limit_gb(device), 6),
        "model": model_digest(options.model, options.model_options),
        "precision": settings.precision,
        "gradient_checkpointing": settings.gradient_checkpointing,
        "grad_acc": settings.grad_acc,
        "world_size": choices.world_size,
        "soak_steps": choices.soak_steps,
        "torch": _version("torch"),
        "transformers": "" if options.model == "ctc" else _version("transformers"),
        "trial_version": VERSION,
        "machine": platform.machine(),
    }


def bucket_key(case: WorstCase) -> dict[str, Any]:
    """What of a bucket decides on its largest batch."""
    names = ("bucket", "longest_seconds", "longest_characters")
    return {name: getattr(case, name) for name in names}


def digest(key: Mapping[str, Any], of_bucket: Mapping[str, Any]) -> str:
    """16 hexadecimal digits for a key."""
    return hashlib.sha256(json.dumps([key, of_bucket], sort_keys=True).encode()).hexdigest()[:16]


def reusable(
    path: Path, key: Mapping[str, Any], of_bucket: Mapping[str, Any], rows: int, max_bs: int
) -> Calibration | None:
    """The calibration in `path` if it still holds: the keys are equal, and if the bucket's rows or `max_bs`
    limited the batch, they are too."""
    try:
        earlier = jsonl.read(path)
        before, now = {**earlier["key"], **earlier["bucket_key"]}, {**key, **of_bucket}
        if (limit := earlier["limited_by"]) in ("rows", "max_bs"):
            before[limit], now[limit] = earlier["search"][limit], {"rows": rows, "max_bs": max_bs}[limit]
        if before == now:
            return earlier
        names = sorted(name for name in before.keys() | now if before.get(name) != now.get(name))
        changes = (f"{name} was {before.get(name)}, and is {now.get(name)}" for name in names)
        log.info("%s is calibrated anew: %s", path, "; ".join(changes))
    except FileNotFoundError:
        pass
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        log.warning("%s is no calibration (%s): it is made anew", path, error)
    return None


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""
