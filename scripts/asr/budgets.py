"""What a batch of each bucket may hold: from calibration, or from one number of seconds for all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scripts.asr.batch_cut import BatchBudget
from scripts.common import jsonl
from scripts.common.errors import MillraceError


def bucket_ids(bucket_dir: str | Path) -> list[str]:
    """The buckets in the order of bucket_config.json, which is the order of rows. Raises MillraceError."""
    path = Path(bucket_dir) / "bucket_config.json"
    try:
        return [bucket["bucket_id"] for bucket in jsonl.read(path)["buckets"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise MillraceError(f"no bucket configuration ({error!r})", str(path), "Run snakemake asr_data") from None


def read_budgets(bucket_dir: str | Path, calibration: str | Path, batch_seconds: float) -> list[BatchBudget]:
    """One budget a bucket: `calibration` (calibrated_bs.json) where named, else `batch_seconds` padded seconds."""
    names = bucket_ids(bucket_dir)
    if not calibration:
        return [BatchBudget(seconds=batch_seconds)] * len(names)
    try:
        found = jsonl.read(calibration)
    except (OSError, ValueError) as error:
        remedy = "Run snakemake asr_calibrate, or train without a calibration"
        raise MillraceError(f"no calibration ({error!r})", str(calibration), remedy) from None
    return budgets(names, found, str(calibration))


def budgets(names: Sequence[str], calibration: Mapping[str, Any], where: str) -> list[BatchBudget]:
    """The calibrated rows of every bucket; the seed's flat form {"b_0_3": {"batch_size": 80}} is read too.

    A bucket's batch size was found with its longest sample. With the `budget` that the memory model gives
    (`seconds`, `cost`), batches of shorter samples hold more rows.
    """
    table = calibration.get("buckets", calibration)
    result = []
    for name in names:
        try:
            entry = table[name]
            budget = entry.get("budget") or {"rows": entry["batch_size"]}
            result.append(BatchBudget(**{limit: budget.get(limit) for limit in ("seconds", "cost", "rows")}))
        except (KeyError, TypeError, AttributeError) as error:
            remedy = "Calibrate again: the buckets are others than those that were calibrated"
            raise MillraceError(f"nothing usable is said of bucket {name} ({error!r})", where, remedy) from None
    return result
