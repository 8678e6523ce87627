"""The calibration of one bucket as a file: what it depends on (device, model, precision, versions),
and when an earlier one is kept."""

from __future__ import annotations

import hashlib
import json
import platform
from dataclasses import asdict, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from millrace.asr.calibration import search, trial, worst_case
from millrace.asr.calibration.options import Choices
from millrace.asr.calibration.search import Answer, Device, Found
from millrace.asr.calibration.worst_case import LONGEST, WorstCase
from millrace.asr.models.folder import model_digest
from millrace.common import atomic, jsonl
from millrace.common.cli import log

# A part of the calibration key: raise it when trials measure something else than before.
VERSION = 2


class Calibration(Found):
    """The file of a bucket."""

    key: dict[str, Any]
    bucket_key: dict[str, Any]
    bucket: str
    rows: int
    longest_seconds: float
    shortest_seconds: float
    longest_characters: int
    grad_acc: int


def calibrate_bucket(choices: Choices, output: Path) -> tuple[Calibration | None, bool]:
    """The calibration of a bucket, and whether an earlier one still holds. `output` is written.

    Without rows it is only `empty`. Raises MillraceError if not even the smallest batch fits.
    """
    case = worst_case.find(choices.bucket_config, choices.bucket, choices.max_bs)
    if case is None:
        empty = {"bucket": choices.bucket, "empty": True}
        return None, not atomic.write_if_changed(output, atomic.json_bytes(empty))
    device: Device = trial.ask({"kind": "device", "device": choices.settings.device})
    choices = _on_device(choices, device)
    key = calibration_key(device, choices)
    bucket_key = {name: getattr(case, name) for name in ("bucket", *LONGEST)}

    # Beside the output, as Snakemake removes an output before it runs its job again.
    text = json.dumps([key, bucket_key], sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()
    cached = output.parent / ".calibrated" / f"{output.stem}-{digest[:16]}.json"
    earlier = reusable(cached, case.rows, choices.max_bs)
    if earlier is not None:
        atomic.write_if_changed(output, atomic.json_bytes(earlier))
        return earlier, True

    calibration: Calibration = {
        "key": key,
        "bucket_key": bucket_key,
        "grad_acc": choices.settings.grad_acc,
        "bucket": case.bucket,
        "rows": case.rows,
        "shortest_seconds": case.shortest_seconds,
        "longest_seconds": case.longest_seconds,
        "longest_characters": case.longest_characters,
        **_searched(choices, case, choices.limit_gb(device)),
    }
    atomic.write_json(cached, calibration)
    atomic.write_json(output, calibration)
    return calibration, False


def _on_device(choices: Choices, device: Device) -> Choices:
    """The choices with what `auto` stands for."""
    settings = replace(choices.settings, device=device["kind"])
    if settings.precision == "auto":
        settings = replace(settings, precision=device["precision"])
    return replace(choices, settings=settings)


def _searched(choices: Choices, case: WorstCase, limit_gb: float) -> Found:
    """What the search finds by trials."""
    request: dict[str, Any] = {
        "options": asdict(choices.options),
        "settings": asdict(choices.settings),
        "limit_gb": limit_gb,
        "world_size": choices.world_size,
        "bucket": case.number,
        "audio_rows": case.audio_rows,
        "text_rows": case.text_rows,
    }

    def worst(rows: int) -> Answer:
        return trial.ask({**request, "kind": "worst", "rows": rows, "steps": choices.steps})

    def soak(rows: int) -> Answer:
        return trial.ask({**request, "kind": "soak", "rows": rows, "steps": choices.soak_steps})

    limits = search.Search(limit_gb, case.rows, choices.start_bs, choices.min_bs, choices.max_bs)
    return search.calibrate(limits, worst, soak if choices.soak_steps else None)


def calibration_key(device: Device, choices: Choices) -> dict[str, Any]:
    """What all buckets of a calibration share: an equal key needs no new one."""
    options = choices.options
    settings = choices.settings

    def version(package: str) -> str:
        return next((installed.version for installed in metadata.distributions(name=package)), "")

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
        "torch": version("torch"),
        "transformers": "" if options.model == "ctc" else version("transformers"),
        "trial_version": VERSION,
        "machine": platform.machine(),
    }


def reusable(path: Path, rows: int, max_bs: int) -> Calibration | None:
    """The calibration in `path`, a file of the key, if the `rows` or `max_bs` that limited it is as
    it was."""
    now = {"rows": rows, "max_bs": max_bs}
    try:
        earlier = jsonl.read(path)
        limit = earlier["limited_by"]
        holds = limit not in now or earlier["search"][limit] == now[limit]
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        log.warning("%s is no calibration (%s): it is made anew", path, error)
        return None
    return earlier if holds else None
