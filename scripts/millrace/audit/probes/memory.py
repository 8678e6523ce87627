"""Memory of a worker as it reads samples that are new to it."""

from __future__ import annotations

import inspect
import re
import sys
import time
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader

from millrace.audit.runner.listener import Listener, is_stream, length, reseed
from millrace.audit.runner.probes import Seen
from millrace.audit.runner.target import Rank, Target
from millrace.audit.runner.walk import walk
from millrace.common.machine.memory import host_memory

CHUNK = 8  # samples between two measurements
MOST = 4096  # samples
GROWN = 512 * 2**20  # bytes that are enough
SECONDS = 3.0
# How classes may bound a cache: they compare its length, or remove entries.
BOUND = re.compile(r"len\(\w+\.\w+\)\s*[<>]|popitem|popleft|\.pop\(next|del self|maxlen")


def memory(target: Target, rank: Rank) -> Seen | None:
    """`new`: samples and bytes that a worker holds after each chunk; `bounded`: see `_is_bounded`;
    `machine`: memory there is."""
    loader = Listener(target.loader(), rank, workers=0).original
    if loader is None:
        return None
    reseed()
    until = time.monotonic() + min(SECONDS, rank.left() / 4)
    new: list[dict[str, int]] = []
    for measured in islice(_worker(loader), MOST // CHUNK):
        new.append(measured)
        if time.monotonic() > until or measured["held"] - new[0]["held"] > GROWN:
            break
    return {
        "new": new,
        "samples": length(loader.dataset),
        "workers": loader.num_workers,
        "ranks": target.options.ranks,
        "persistent": loader.persistent_workers,
        "split": hasattr(loader.sampler, "num_replicas"),
        "bounded": _is_bounded(loader.dataset),
        "machine": host_memory(),
    }


def _worker(loader: Any) -> DataLoader:
    """One worker that reads new samples, and gives measurements instead of batches."""
    how: Seen = {
        "num_workers": 1,
        "collate_fn": measure,
        "worker_init_fn": loader.worker_init_fn,
        "multiprocessing_context": loader.multiprocessing_context or "fork",
    }
    if is_stream(loader):
        how["batch_size"] = CHUNK
    else:
        order = list(islice(loader.sampler, MOST))
        step = max(1, min(CHUNK, len(order) // 24))
        starts = range(0, len(order), step)
        how["batch_sampler"] = [order[start : start + step] for start in starts]
    return DataLoader(loader.dataset, **how)


def measure(samples: list[Any]) -> dict[str, int]:
    """Instead of a batch: how many samples it has, and the bytes that the worker holds without
    them."""
    size = len(samples)
    samples.clear()
    text = Path("/proc/self/smaps_rollup").read_text()
    kib = dict(re.findall(r"^(\w+):\s+(\d+) kB", text, re.MULTILINE))
    held = int(kib["Anonymous"]) + int(kib["Swap"])
    return {"samples": size, "held": 1024 * held}


def _is_bounded(data: Any) -> bool:
    """Whether the source of what a data set holds speaks of a bound, or calls an lru_cache that has
    one."""
    for kind in {type(part) for _, part in walk(data)}:
        if kind.__module__.partition(".")[0] in ("builtins", "torch", "numpy"):
            continue
        home = vars(sys.modules[kind.__module__])
        functions = list(vars(kind).values())
        codes = [function.__code__ for function in functions if hasattr(function, "__code__")]
        functions += [home.get(name) for code in codes for name in code.co_names]
        for function in functions:
            if hasattr(function, "cache_parameters") and function.cache_parameters()["maxsize"]:
                return True
        with suppress(OSError, TypeError):
            if BOUND.search(inspect.getsource(kind)):
                return True
    return False
