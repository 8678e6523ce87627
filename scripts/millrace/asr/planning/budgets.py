"""What a batch of each bucket may hold: from calibration, or from one number of seconds for all; a
calibration for another model or precision is refused."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from millrace.asr.buckets.config import BucketConfig
from millrace.asr.models.folder import model_digest
from millrace.asr.planning.cut import BatchBudget
from millrace.common import jsonl
from millrace.common.cli import log
from millrace.common.errors import MillraceError
from millrace.common.training.settings import LoopSettings


def read_budgets(
    bucket_dir: str | Path, calibration: str | Path | None, batch_seconds: float
) -> list[BatchBudget]:
    """One budget a bucket: from `calibration` (calibrated_bs.json) if given, else padded
    `batch_seconds`."""
    names = BucketConfig.read(bucket_dir).ids
    if not calibration:
        return [BatchBudget(seconds=batch_seconds)] * len(names)
    try:
        merged = jsonl.read(calibration)
        if not isinstance(merged, dict):
            raise ValueError("it is no JSON object")
    except (OSError, ValueError) as error:
        remedy = "Run snakemake asr_calibrate, or train without a calibration"
        raise MillraceError(f"no calibration ({error!r})", str(calibration), remedy) from None
    # The original script's flat form is {"b_0_3": {"batch_size": 80}}.
    table = merged.get("buckets", merged)
    return [_budget(name, table, str(calibration)) for name in names]


def check_calibration(
    calibration: str | Path,
    model: str,
    options: Mapping[str, Any],
    settings: LoopSettings,
    world_size: int,
) -> None:
    """Raise MillraceError if the sizes in `calibration` were found for a training that takes other
    memory."""
    key = jsonl.read(calibration).get("key")
    if not isinstance(key, dict):  # the original script's flat form has none
        return
    now: dict[str, object] = {"model": model_digest(model, options)}
    now["precision"] = settings.precision
    now["gradient_checkpointing"] = settings.gradient_checkpointing
    if differing := [name for name, value in now.items() if key.get(name, value) != value]:
        problem = (
            f"these batch sizes were calibrated for another {', '.join(differing)} than this"
            " run has"
        )
        rules = "the rules take them from asr.model and asr.training"
        remedy = f"Calibrate with the settings of the run ({rules}), or train without a calibration"
        raise MillraceError(problem, str(calibration), remedy)
    # Gradients that stay while others are made: of accumulated batches, in DDP's buckets.
    more = "%s: calibrated with %s 1; this run keeps one more copy of the gradients"
    for name, count in {"grad_acc": settings.grad_acc, "world_size": world_size}.items():
        if count > 1 and key.get(name) == 1:
            log.warning(more, calibration, name)


def _budget(name: str, table: Any, where: str) -> BatchBudget:
    """The calibrated budget of a bucket.

    Its batch size was found with its longest sample. With the `budget` that the memory model gives
    (`seconds`, `cost`), batches of shorter samples hold more rows.
    """
    try:
        entry = table[name]
        budget = entry.get("budget") or {"rows": entry["batch_size"]}
        return BatchBudget(**{limit: budget.get(limit) for limit in ("seconds", "cost", "rows")})
    except (KeyError, TypeError, AttributeError, MillraceError) as error:
        remedy = "Calibrate these buckets, or write {bucket: {batch_size: 1 or more}} of each"
        problem = f"no batch size for bucket {name} ({error!r})"
        raise MillraceError(problem, where, remedy) from None
