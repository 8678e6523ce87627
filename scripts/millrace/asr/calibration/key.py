"""What a calibration depends on: equal keys need no new one."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from millrace.asr.calibration.worst_case import WorstCase
from millrace.asr.models.files import model_digest
from millrace.common import jsonl
from millrace.common.cli import log


def calibration_key(
    device: Mapping[str, Any],
    options: Mapping[str, Any],
    settings: Mapping[str, Any],
    limit_gb: float,
    world_size: int,
    soak_steps: int,
) -> dict[str, Any]:
    """What all buckets of a calibration share. `device`: answer of the trial `device`; `options`: of
    TrainOptions; `settings`: of LoopSettings."""
    return {
        "device": device["name"],
        "device_memory_gb": device["memory_gb"],
        "estimated": bool(device.get("estimated")),
        "limit_gb": round(limit_gb, 6),
        "model": model_digest(options["model"], options["model_options"]),
        "precision": settings["precision"],
        "gradient_checkpointing": settings["gradient_checkpointing"],
        "grad_acc": settings["grad_acc"],
        "world_size": world_size,
        "soak_steps": soak_steps,
        "torch": _version("torch"),
        "transformers": "" if options["model"] == "ctc" else _version("transformers"),
        "trial_version": VERSION,
        "machine": platform.machine(),
    }


def bucket_key(case: WorstCase) -> dict[str, Any]:
    """What of a bucket decides on its largest batch."""
    return {
        "bucket": case.bucket,
        "longest_seconds": case.longest_seconds,
        "longest_characters": case.longest_characters,
    }


def digest(key: Mapping[str, Any], of_bucket: Mapping[str, Any]) -> str:
    """16 hexadecimal digits for a key."""
    return hashlib.sha256(json.dumps([dict(key), dict(of_bucket)], sort_keys=True).encode()).hexdigest()[:16]


def kept(
    path: Path, key: Mapping[str, Any], of_bucket: Mapping[str, Any], rows: int, max_bs: int
) -> dict[str, Any] | None:
    """The calibration in `path` if it still holds: same keys; and where the bucket's rows or `max_bs` were
    what limited the batch, the same of those."""
    try:
        found = jsonl.read(path)
        if found["key"] == dict(key) and found["bucket_key"] == dict(of_bucket):
            now = {"rows": rows, "max_bs": max_bs}
            limit = found["limited_by"]
            if limit not in now or found["search"][limit] == now[limit]:
                return found
            log.info("%s: %s was %d, and is %d", path, limit, found["search"][limit], now[limit])
            return None
        names = [name for name, value in {**key, **of_bucket}.items() if value != _old(found, name)]
        log.info("%s is calibrated anew: %s changed", path, ", ".join(names) or "its key")
    except FileNotFoundError:
        pass
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        log.warning("%s is no calibration (%s): it is made anew", path, error)
    return None


def _old(found: Mapping[str, Any], name: str) -> Any:
    return {**found["key"], **found["bucket_key"]}.get(name)


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


# A part of the calibration key: raise it when trials measure something else than before.
VERSION = 1
