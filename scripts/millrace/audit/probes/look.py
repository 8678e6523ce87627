"""The first look: whether the loader can be made and gives a batch in time, and in which environment."""

from __future__ import annotations

import contextlib
import sys
from typing import Any

import torch
from torch.utils.data import IterableDataset

from millrace.audit.runner.tap import Tap
from millrace.audit.runner.target import Options, Rank, Target, locate


def look(target: Target, options: Options, rank: Rank) -> dict[str, Any]:
    """Read a batch without workers; what it raises is for other probes to find out."""
    for name in filter(None, (options.val_loader, options.model, options.loop)):
        locate(name)  # a name that is misspelt is an error, no missing verdict
    tap = Tap(target.loader(), rank, workers=0, max_batches=1)
    with contextlib.suppress(Exception):
        tap.run()
    core = tap.original
    methods = getattr(core, "multiprocessing_context", None) or torch.multiprocessing
    return {
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "start_method": methods.get_start_method(),
        "together": options.together,
        "iterable": core is not None and isinstance(core.dataset, IterableDataset),
    }


def length(thing: Any) -> int | None:
    """What `len` says, or None."""
    try:
        return len(thing)
    except Exception:  # torch's is a TypeError, others' are what they like
        return None
