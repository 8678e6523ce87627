"""calibrated_bs.json: batch sizes of all buckets, also of empty ones, the memory model behind them,
and the planner's budgets with the margin that they leave."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from millrace.asr.buckets.config import BucketConfig
from millrace.asr.calibration import memory_model, worst_case
from millrace.asr.calibration.cache import Calibration
from millrace.asr.calibration.memory_model import MemoryModel, Point
from millrace.common import atomic, jsonl
from millrace.common.cli import log
from millrace.common.errors import MillraceError

_BETWEEN = 0.01  # share of the limit left for lengths between those that were tried
_REPEAT = "Run calibrate_bucket_bs again for the buckets that differ"
_TAKEN = (
    "batch_size",
    "grad_acc",
    *worst_case.LONGEST,
    "limited_by",
    "peak_memory_gb",
)


def merge(bucket_config: Path, paths: Sequence[Path]) -> dict[str, Any]:
    """Gather the calibrations of the buckets of `bucket_config`, in its order.

    Buckets without rows need none; they get the batch size of the next bucket of longer samples
    that has some. Raises MillraceError for missing, unknown or twice calibrated buckets, and for
    keys that differ.
    """
    given = _given(paths)
    rows = worst_case.bucket_rows(BucketConfig.read(bucket_config))
    _check_complete(given, rows, str(bucket_config))

    # In the order of the buckets: the last bits of the fit depend on it.
    known = [name for name in rows if name in given]
    points = [point for name in known for point in _points(given[name])]
    model = memory_model.fit(points)
    under = memory_model.worst_underestimate(model, points)
    # What the model has underestimated it may underestimate again; lengths between the tried are
    # untested.
    key = given[known[0]]["key"]
    limit = key["limit_gb"] * (1 - under - _BETWEEN)
    buckets: dict[str, Any] = {}
    source = known[-1]
    for name in reversed(rows):
        source = name if name in given else source
        buckets[name] = _bucket(given[source], model, limit)
        if source != name:
            buckets[name]["empty"] = True
            log.warning("%s has no rows; it gets the batch size of %s", name, source)
    return {
        "key": key,
        "memory_model": {**model.as_dict(), "worst_under": under},
        "limit_gb": key["limit_gb"],
        "buckets": {name: buckets[name] for name in rows},
    }


def _given(paths: Sequence[Path]) -> dict[str, Calibration]:
    """The calibrations by bucket, all of one key."""
    given: dict[str, Calibration] = {}
    for path in paths:
        calibration = _read(path)
        if calibration is None:
            continue
        name = calibration["bucket"]
        if name in given:
            raise MillraceError(f"{name} is calibrated twice", str(path), "Give one file a bucket")
        given[name] = calibration
        first = next(iter(given))
        key = given[first]["key"]
        own = calibration["key"]
        if own != key:
            changed = [name for name, value in key.items() if own.get(name) != value]
            problem = f"it was calibrated for another {', '.join(changed) or 'key'} than {first}"
            raise MillraceError(problem, str(path), _REPEAT)
    return given


def _check_complete(given: Mapping[str, Any], rows: Mapping[str, int], where: str) -> None:
    """Raise MillraceError unless there is a calibration of every bucket with rows, and no other."""
    missing = [name for name, count in rows.items() if count and name not in given]
    unknown = sorted(given.keys() - rows.keys())
    if missing or unknown:
        problem = f"buckets without a calibration: {', '.join(missing) or 'none'}"
        problem += f"; unknown ones: {', '.join(unknown)}"
        raise MillraceError(problem, where, _REPEAT)
    if not given:
        raise MillraceError("no bucket has any rows", where, "There is nothing to train on")


def merge_folder(bucket_config: Path, folder: Path) -> str:
    """calibrated_bs.json of `folder`, merged from its buckets/*.json where there are any; every
    rank may call it, as all write the same."""
    output = folder / "calibrated_bs.json"
    names = BucketConfig.read(bucket_config).ids
    paths = [folder / "buckets" / f"{name}.json" for name in names]
    present = [path for path in paths if path.exists()]
    if present:
        merged = atomic.json_bytes(merge(bucket_config, present))
        if atomic.write_if_changed(output, merged):
            log.info("%s: merged from %d calibrations of buckets", output, len(present))
    return str(output)


def _read(path: Path) -> Calibration | None:
    """None for a bucket without rows. Raises MillraceError for all that is no calibration."""
    try:
        calibration = jsonl.read(path)
    except (OSError, ValueError, TypeError) as error:
        raise MillraceError(f"no calibration of a bucket ({error})", str(path), _REPEAT) from None
    if isinstance(calibration, dict) and calibration.get("empty"):
        return None
    if not isinstance(calibration, dict) or not set(calibration) >= Calibration.__required_keys__:
        raise MillraceError("no whole calibration of a bucket", str(path), _REPEAT)
    return cast("Calibration", calibration)


def _points(calibration: Calibration) -> list[Point]:
    """The measured peaks of a bucket: those of worst-case trials, also above the limit."""
    points = []
    for trial in calibration["trials"]:
        shape = trial["heaviest"]
        if trial.get("step_peak_gb") and not trial.get("retried"):
            peak = trial["step_peak_gb"]
            points.append(Point(shape["rows"], shape["seconds"], shape["characters"], peak))
    return points


def _bucket(calibration: Calibration, model: MemoryModel, limit_gb: float) -> dict[str, Any]:
    facts: Mapping[str, Any] = calibration
    rows = calibration["batch_size"]
    longest = calibration["longest_seconds"]
    # The characters a row are those of the trial's batch, which has as many of the longest
    # transcripts as rows: one overlong transcript must not make every row of every batch as
    # expensive.
    untried = Point(rows, longest, calibration["longest_characters"], 0.0)
    near = min(_points(calibration), key=lambda point: abs(point.rows - rows), default=untried)
    lengths = (calibration["shortest_seconds"], max(near.seconds, longest))
    return {
        **{name: facts[name] for name in _TAKEN},
        "budget": memory_model.budget_of(model, limit_gb, rows, *lengths, near.characters),
    }
