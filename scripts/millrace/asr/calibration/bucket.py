"""The calibration of one bucket as a file: made if its key is new, kept otherwise."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping
from dataclasses import asdict, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from millrace.asr.calibration import search, trial, worst_case
from millrace.asr.calibration.options import Choices
from millrace.asr.calibration.search import Answer, Device, Found
from millrace.asr.calibration.worst_case import LONGEST
from millrace.asr.models.files import model_digest
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
    limit, settings = choices.limit_gb(device), replace(choices.settings, device=device["kind"])
    if settings.precision == "auto":
        settings = replace(settings, precision=device["precision"])
    choices = replace(choices, settings=settings)
    key, facts = calibration_key(device, choices), asdict(case)
    of_bucket = {name: facts[name] for name in ("bucket", *LONGEST)}

    # Snakemake removes an output before it runs its job again, so there is a second copy, one for
    # each key.
    digest = hashlib.sha256(json.dumps([key, of_bucket], sort_keys=True).encode()).hexdigest()[:16]
    copy = output.parent / ".calibrated" / f"{output.stem}-{digest}.json"
    for path in (output, copy):
        if earlier := reusable(path, {**key, **of_bucket}, case.rows, choices.max_bs):
            atomic.write_if_changed(output, atomic.json_bytes(earlier))
            return earlier, True

    request: dict[str, Any] = {"options": asdict(choices.options), "settings": asdict(settings)}
    request |= {"limit_gb": limit, "world_size": choices.world_size, "bucket": case.number}

    def worst(rows: int) -> Answer:
        longest = {"audio_rows": case.audio_rows[:rows], "text_rows": case.text_rows[:rows]}
        return trial.ask(
            {**request, "kind": "worst", **longest, "rows": rows, "steps": choices.steps}
        )

    def soak(rows: int) -> Answer:
        return trial.ask({**request, "kind": "soak", "rows": rows, "steps": choices.soak_steps})

    limits = search.Search(limit, case.rows, choices.start_bs, choices.min_bs, choices.max_bs)
    calibration: Calibration = {
        "key": key,
        "bucket_key": of_bucket,
        "grad_acc": settings.grad_acc,
        "bucket": case.bucket,
        "rows": case.rows,
        "shortest_seconds": case.shortest_seconds,
        "longest_seconds": case.longest_seconds,
        "longest_characters": case.longest_characters,
        **search.calibrate(limits, worst, soak if choices.soak_steps else None),
    }
    atomic.write_json(copy, calibration)
    atomic.write_json(output, calibration)
    return calibration, False


def calibration_key(device: Device, choices: Choices) -> dict[str, Any]:
    """What all buckets of a calibration share: an equal key needs no new one."""
    options, settings = choices.options, choices.settings

    def version(package: str) -> str:
        return next((installed.version for installed in metadata.distributions(name=package)), "")

    return {
        "device": device["name"],
        "device_memory_gb": device["memory_gb"],
        "limit_gb": round(choices.limit_gb(device), 6),
        "model": model_digest(options.model, options.model_options),
        **{
            name: getattr(settings, name)
            for name in ("precision", "gradient_checkpointing", "grad_acc")
        },
        **{"world_size": choices.world_size, "soak_steps": choices.soak_steps},
        "torch": version("torch"),
        "transformers": "" if options.model == "ctc" else version("transformers"),
        "trial_version": VERSION,
        "machine": platform.machine(),
    }


def reusable(path: Path, key: Mapping[str, Any], rows: int, max_bs: int) -> Calibration | None:
    """The calibration in `path` if it has `key`, and the `rows` or `max_bs` that limited it is the
    same."""
    try:
        earlier = jsonl.read(path)
        before, now = {**earlier["key"], **earlier["bucket_key"]}, dict(key)
        if (limit := earlier["limited_by"]) in ("rows", "max_bs"):
            before[limit], now[limit] = (
                earlier["search"][limit],
                {"rows": rows, "max_bs": max_bs}[limit],
            )
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
