"""The calibration of one bucket as a file: made if its key is new, kept otherwise."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from millrace.asr.calibration import key as calibration_key
from millrace.asr.calibration import search, trial, worst_case
from millrace.asr.calibration.key import Calibration
from millrace.asr.calibration.messages import Answer, Device
from millrace.asr.calibration.options import Choices
from millrace.common import atomic


def calibrate_bucket(choices: Choices, output: Path) -> tuple[Calibration | None, bool]:
    """The calibration of a bucket, and whether an earlier one still holds. `output` is written.

    A bucket without rows has none: its file only says that it is `empty`. Raises MillraceError if not even
    the smallest batch fits.
    """
    case = worst_case.find(choices.bucket_config, choices.bucket, choices.max_bs)
    if case is None:
        empty = {"bucket": choices.bucket, "empty": True}
        return None, not atomic.write_if_changed(output, atomic.json_bytes(empty))
    device: Device = trial.ask({"kind": "device", "device": choices.settings.device})
    limit, settings = choices.limit_gb(device), replace(choices.settings, device=device["kind"])
    key, of_bucket = calibration_key.calibration_key(device, choices), calibration_key.bucket_key(case)

    # Snakemake removes an output before it runs its job again, so there is a second copy, one for each key.
    copy = output.parent / ".calibrated" / f"{output.stem}-{calibration_key.digest(key, of_bucket)}.json"
    for path in (output, copy):
        earlier = calibration_key.reusable(path, key, of_bucket, case.rows, choices.max_bs)
        if earlier is not None:
            atomic.write_if_changed(output, atomic.json_bytes(earlier))
            return earlier, True

    request: dict[str, Any] = {"options": asdict(choices.options), "settings": asdict(settings)}
    request |= {"limit_gb": limit, "world_size": choices.world_size, "bucket": case.number}

    def worst(rows: int) -> Answer:
        longest = {"audio_rows": case.audio_rows[:rows], "text_rows": case.text_rows[:rows]}
        return trial.ask({**request, "kind": "worst", **longest, "rows": rows, "steps": choices.steps})

    def soak(rows: int) -> Answer:
        return trial.ask({**request, "kind": "soak", "rows": rows, "steps": choices.soak_steps})

    limits = search.Search(limit, case.rows, choices.start_bs, choices.min_bs, choices.max_bs)
    calibration: Calibration = {
        "key": key,
        "bucket_key": of_bucket,
        "bucket": case.bucket,
        "rows": case.rows,
        "longest_seconds": case.longest_seconds,
        "shortest_seconds": case.shortest_seconds,
        "longest_characters": case.longest_characters,
        "grad_acc": settings.grad_acc,
        **search.calibrate(limits, worst, soak if choices.soak_steps else None),
    }
    atomic.write_json(copy, calibration)
    atomic.write_json(output, calibration)
    return calibration, False
