"""calibrated_bs.json: the batch sizes of all buckets, the memory model behind them, and the planner's
budgets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from millrace.asr.buckets.config import BucketConfig
from millrace.asr.calibration import memory_model, worst_case
from millrace.asr.calibration.memory_model import MemoryModel, Point
from millrace.common import jsonl
from millrace.common.cli import log
from millrace.common.errors import MillraceError

_FIELDS = {
    "bucket",
    "key",
    "batch_size",
    "grad_acc",
    "limited_by",
    "trials",
    "measured",
    "peak_memory_gb",
} | {*("longest_seconds", "shortest_seconds", "longest_characters")}
_BETWEEN = 0.01  # share of the limit kept for lengths between those that were tried
_REPEAT = "Run calibrate_bucket_bs again for the buckets that differ"


def merge(bucket_config: Path, paths: Sequence[Path]) -> dict[str, Any]:
    """Gather the calibrations of the buckets of `bucket_config`, in its order.

    Buckets without rows need none; they get the batch size of the next bucket of longer samples that has
    some. Raises MillraceError for missing, unknown or twice calibrated buckets, and for keys that differ.
    """
    found: dict[str, dict[str, Any]] = {}
    for path in paths:
        calibration = read(path)
        if calibration.get("empty"):
            continue
        if calibration["bucket"] in found:
            raise MillraceError(
                f"{calibration['bucket']} is calibrated twice", str(path), "Give one file a bucket"
            )
        found[calibration["bucket"]] = calibration
        first = next(iter(found.values()))
        if calibration["key"] != first["key"]:
            names = [name for name, value in first["key"].items() if calibration["key"].get(name) != value]
            problem = f"it was calibrated for another {', '.join(names) or 'key'} than {first['bucket']}"
            raise MillraceError(problem, str(path), _REPEAT)
    names, empty = BucketConfig.read(bucket_config).ids, worst_case.empty_buckets(bucket_config)
    missing = [name for name in names if name not in found and name not in empty]
    unknown = sorted(set(found) - set(names))
    if not found and not missing:
        raise MillraceError("no bucket has any rows", str(bucket_config), "There is nothing to train on")
    if missing or unknown:
        problem = f"buckets without a calibration: {', '.join(missing) or 'none'}; unknown ones: {', '.join(unknown)}"
        raise MillraceError(problem, str(bucket_config), _REPEAT)
    # In one order: the last bits of the fit depend on it.
    points = [point for name in names if name in found for point in points_of(found[name])]
    model = memory_model.fit(points)
    errors = memory_model.residuals(model, points)
    key = next(iter(found.values()))["key"]
    # What the model has underestimated, it may underestimate again; and no trial has measured the lengths
    # between.
    limit = key["limit_gb"] * (1 - errors["worst_under"] - _BETWEEN)
    buckets: dict[str, Any] = {name: _bucket(found[name], model, limit) for name in names if name in found}
    known = [name for name in names if name in found]
    for name in names:
        if name not in found:
            longer = [other for other in known if names.index(other) > names.index(name)] or known[-1:]
            buckets[name] = {**buckets[longer[0]], "empty": True}
            log.warning("%s has no rows; it gets the batch size of %s", name, longer[0])
    return {
        "key": key,
        "measured": all(calibration["measured"] for calibration in found.values()),
        "memory_model": {**model.as_dict(), "residuals": errors},
        "limit_gb": key["limit_gb"],
        "buckets": {name: buckets[name] for name in names},
    }


def read(path: Path) -> dict[str, Any]:
    """A calibration of one bucket. Raises MillraceError for anything else."""
    try:
        found = jsonl.read(path)
        complete = isinstance(found, dict) and (found.get("empty") or set(found) >= _FIELDS)
    except (OSError, ValueError, TypeError) as error:
        raise MillraceError(f"no calibration of a bucket ({error})", str(path), _REPEAT) from None
    if not complete:
        raise MillraceError("no whole calibration of a bucket", str(path), _REPEAT)
    return found


def points_of(calibration: Mapping[str, Any]) -> list[Point]:
    """The measured peaks of a bucket: those of worst-case trials, also above the limit."""
    return [
        Point(
            calibration["bucket"], shape["rows"], shape["seconds"], shape["characters"], trial["step_peak_gb"]
        )
        for trial in calibration["trials"]
        if trial.get("step_peak_gb") and not trial.get("retried") and (shape := trial["heaviest"]).get("rows")
    ]


def _bucket(calibration: Mapping[str, Any], model: MemoryModel, limit_gb: float) -> dict[str, Any]:
    rows, longest = calibration["batch_size"], calibration["longest_seconds"]
    # Characters a row are those of the trial's batch, which has as many of the longest transcripts as it has
    # rows: one overlong transcript must not make every row of every batch as dear.
    unknown = Point("", rows, longest, calibration["longest_characters"], 0.0)
    near = min(points_of(calibration), key=lambda point: abs(point.rows - rows), default=unknown)
    longest = max(near.seconds, longest)
    return {
        "batch_size": rows,
        "grad_acc": calibration["grad_acc"],
        "longest_seconds": calibration["longest_seconds"],
        "longest_characters": calibration["longest_characters"],
        "limited_by": calibration["limited_by"],
        "peak_memory_gb": calibration["peak_memory_gb"],
        "predicted_memory_gb": model.predict(rows, near.seconds, near.characters),
        "soak_peak_gb": (calibration.get("soak") or {}).get("peak_gb"),
        "backed_off": calibration.get("backed_off", []),
        "budget": memory_model.budget_of(
            model, limit_gb, rows, calibration["shortest_seconds"], longest, near.characters
        ),
    }
