"""Memory of a rank's batches under way, which a job has to ask for; without loading torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from millrace.common import jsonl

_SECOND_BYTES = 64_000  # of audio: float32 at 16 kHz
# Padded audio of the largest batch on a large GPU, where the calibration is still to be made.
_USUAL_SECONDS = 2_000.0


def batches_mb(
    workers: int,
    prefetch: int,
    seconds: float,
    pinned: bool,
) -> float:
    """MB of the batches under way of a rank, of at most `seconds` of padded audio each.

    They lie in slots in /dev/shm, which is the job's memory too: `prefetch` of each worker, the one
    that it writes, and the one that is trained on. `pinned`: there are page-locked copies for the
    GPU of all that wait, in blocks that torch rounds up to powers of two and keeps.
    """
    batch = seconds * _SECOND_BYTES
    size = workers * (prefetch + 2) * batch
    if pinned:
        block = 2.0 ** math.ceil(math.log2(batch))
        size += (workers * prefetch + 1) * block
    return size / 1e6


def largest_batch_seconds(calibration: str | Path) -> float:
    """Padded audio of the largest batch that calibrated_bs.json allows, seconds; what is usual on a
    large GPU if there is none yet, or no whole one."""
    try:
        buckets = jsonl.read(calibration)["buckets"].values()
        return max(map(_most_seconds, buckets))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return _USUAL_SECONDS


def _most_seconds(bucket: Mapping[str, Any]) -> float:
    """A cost is the padded seconds at least (planning.cut.batch_cost)."""
    budget = bucket.get("budget") or {}
    limit = budget.get("seconds") or budget.get("cost")
    return float(limit or bucket["batch_size"] * bucket["longest_seconds"])
