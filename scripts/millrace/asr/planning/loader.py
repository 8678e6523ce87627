"""The loader of a bucket folder with a plan for each epoch, for training code outside of Millrace."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

from millrace.asr.loading.dataset import BucketedDataset
from millrace.asr.loading.row_table import RowTable
from millrace.asr.planning.cut import BatchBudget
from millrace.asr.planning.planner import plan_epoch
from millrace.common.loading.loader import BatchLoader


def open_loader(
    bucket_dir: str | os.PathLike,
    workers: int = 0,
    seconds: float = 240.0,
    seed: int = 42,
    world_size: int = 1,
    split: str = "train",
    **options: Any,
) -> BatchLoader:
    """Batches of at most `seconds` of padded audio; `options` are BucketedDataset's (rank, decode, …)."""
    table = RowTable.open(bucket_dir, split=split)
    plans = partial(plan_epoch, table.durations(), BatchBudget(seconds), seed, world_size=world_size)
    return BatchLoader(BucketedDataset(table, **options), workers, plans=plans)
