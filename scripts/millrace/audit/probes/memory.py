"""Memory of a worker as it reads samples that are new to it, and whether the source of the data set
speaks of a bound of its cache."""

from __future__ import annotations

import inspect
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain, islice
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader

from millrace.audit.probes.batches import is_name
from millrace.audit.runner.listener import Listener, is_stream, length, reseed
from millrace.audit.runner.probes import Seen
from millrace.audit.runner.target import Rank, Target
from millrace.audit.runner.walk import walk
from millrace.common.machine.memory import host_memory

CHUNK = 8  # samples between two measurements
MOST = 4096  # samples
GROWN = 512 * 2**20  # bytes that are enough
SECONDS = 3.0
FURTHEST = 20_000  # samples, to see whether growth ends at a bound
# How classes may bound a cache: they compare its length with a number, count its bytes, or remove
# entries. It says how many samples are to be read, and nothing else: a line that prints looks the
# same.
BOUND = re.compile(
    r"len\(\w+\.\w+\)\s*[<>]=?\s*(?:\w+\.(\w+)|(\d+))|popitem|popleft|\.pop\(next|del self|maxlen"
    r"|nbytes|getsizeof"
    r"|maxsize=(?!None)"  # of an lru_cache that a worker makes
)


def memory(target: Target, rank: Rank) -> Seen | None:
    """`new`: samples and bytes that a worker holds after each chunk; `most`: see `bound`;
    `machine`: memory there is."""
    loader = Listener(target.loader(), rank, workers=0).original
    if loader is None:
        return None
    reseed()
    data = loader.dataset
    until = time.monotonic() + min(SECONDS, rank.left() / 4)
    most = bound(data)
    read = min(max(MOST, 2 * (most or 0)), FURTHEST)
    new: list[dict[str, int]] = []
    for measured in islice(_worker(loader, read, most or 0), read // CHUNK):
        new.append(measured)
        if time.monotonic() > until or measured["held"] - new[0]["held"] > GROWN:
            break
    return {
        "new": new,
        "samples": length(data),
        "workers": loader.num_workers,
        "ranks": target.options.ranks,
        "persistent": loader.persistent_workers,
        "split": hasattr(loader.sampler, "num_replicas"),
        "most": most,
        "machine": host_memory(),
    }


def _worker(loader: Any, read: int, most: int) -> DataLoader:
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
        order = list(islice(_asked(loader), read))
        step = max(1, min(CHUNK, len(order) // 24), most // 32)
        starts = range(0, len(order), step)
        how["batch_sampler"] = [order[start : start + step] for start in starts]
    return DataLoader(loader.dataset, **how)


def _asked(loader: Any) -> Iterator[Any]:
    """What a data set is asked for: rows, or the names that a batch sampler hands out."""
    if loader.batch_sampler is not None:
        batch = next(iter(loader.batch_sampler), ())
        if is_name(next(iter(batch), None)):
            return chain.from_iterable(loader.batch_sampler)
    return iter(loader.sampler)


def measure(samples: list[Any]) -> dict[str, int]:
    """Instead of a batch: how many samples it has, and the bytes that the worker holds without
    them."""
    size = len(samples)
    samples.clear()
    text = Path("/proc/self/smaps_rollup").read_text()
    kib = dict(re.findall(r"^(\w+):\s+(\d+) kB", text, re.MULTILINE))
    held = int(kib["Anonymous"]) + int(kib["Swap"])
    return {"samples": size, "held": 1024 * held}


def bound(data: Any) -> int | None:
    """The most entries that the source of a data set speaks of; None: of no bound; 0: of an unknown
    one."""
    reached = (part for _, part in walk(data, code=True))
    asked = (getattr(part, "cache_parameters", None) for part in reached)
    sizes = [ask()["maxsize"] for ask in asked if callable(ask)]
    most = [size for size in sizes if size is not None]
    for part in {type(part): part for _, part in walk(data)}.values():
        if type(part).__module__.partition(".")[0] in ("builtins", "torch", "numpy"):
            continue
        with suppress(OSError, TypeError):
            for match in BOUND.finditer(inspect.getsource(type(part))):
                number = match[2] or getattr(part, match[1] or "", 0)
                most.append(int(number) if isinstance(number, (int, str)) else 0)
    return max(most, default=None)
