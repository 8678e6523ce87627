"""Memory of a worker as it reads samples that are new to it."""

from __future__ import annotations

import contextlib
import inspect
import re
import sys
import time
from itertools import islice
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from millrace.audit.probes.first_batch import length
from millrace.audit.runner.listener import Listener, reseed
from millrace.audit.runner.probes import Seen
from millrace.audit.runner.target import Options, Rank, Target
from millrace.audit.runner.walk import walk
from millrace.common.machine.memory import host_memory

CHUNK, MOST, GROWN, SECONDS = 8, 4096, 512 * 2**20, 3.0
FURTHEST = 20_000  # samples, to see whether growth ends at a bound
# How classes may bound a cache: they compare its length with a number, or remove entries. It says
# how many samples are to be read, and nothing else: a line that prints looks the same.
BOUND = re.compile(
    r"len\(\w+\.\w+\)\s*[<>]=?\s*(?:\w+\.(\w+)|(\d+))|popitem|popleft|\.pop\(next|del self|maxlen"
)


def memory(target: Target, options: Options, rank: Rank) -> Seen:
    """`new`: samples, private, anonymous and shared bytes after each chunk; `machine`: memory there
    is."""
    loader = Listener(target.loader(), rank, workers=0).original
    if loader is None:
        return {}
    reseed(options.seed)
    data, new, until = loader.dataset, [], time.monotonic() + min(SECONDS, rank.left() / 4)
    most = bound(data)
    read = min(max(MOST, 2 * (most or 0)), FURTHEST)
    how = {"num_workers": 1, "collate_fn": measure, "worker_init_fn": loader.worker_init_fn}
    how["multiprocessing_context"] = loader.multiprocessing_context or "fork"
    if isinstance(data, IterableDataset):
        how["batch_size"] = CHUNK
    else:
        order = list(islice(loader.sampler, read))
        step = max(1, min(CHUNK, len(order) // 24), 2 * (most or 0) // 64)
        how["batch_sampler"] = [order[start : start + step] for start in range(0, len(order), step)]
    for measured in islice(DataLoader(data, **how), read // CHUNK):
        new.append(measured)
        if time.monotonic() > until or new[-1][1] - new[0][1] > GROWN:
            break
    seen = {
        "samples": length(data),
        "workers": loader.num_workers,
        "ranks": options.ranks,
        "new": new,
    }
    seen |= {
        "persistent": loader.persistent_workers,
        "split": hasattr(loader.sampler, "num_replicas"),
    }
    return seen | {"most": most, "machine": host_memory()}


def measure(samples: list[Any]) -> list[int]:
    """Instead of a batch: how many samples it has, and what the worker holds without them."""
    size = len(samples)
    samples.clear()
    lines = re.findall(
        r"^(\w+):\s+(\d+) kB", Path("/proc/self/smaps_rollup").read_text(), re.MULTILINE
    )
    kib = {name: int(value) * 1024 for name, value in lines}
    return [size, kib["Private_Dirty"], kib["Anonymous"] + kib["Swap"], kib["Shared_Dirty"]]


def bound(data: Any) -> int | None:
    """The most entries that the source of a data set speaks of; None: of no bound; 0: of an unknown
    one."""
    most: list[int] = []
    for each in {type(each): each for _, each in walk(data)}.values():
        if type(each).__module__.partition(".")[0] in ("builtins", "torch", "numpy"):
            continue
        home, own = vars(sys.modules[type(each).__module__]), list(vars(type(each)).values())
        codes = [code.__code__ for code in own if hasattr(code, "__code__")]
        own += [home.get(name) for code in codes for name in code.co_names]
        caches = [
            each.cache_parameters()["maxsize"] for each in own if hasattr(each, "cache_parameters")
        ]
        most += [size for size in caches if size is not None]
        with contextlib.suppress(OSError, TypeError):
            for match in BOUND.finditer(inspect.getsource(type(each))):
                number = match[2] or getattr(each, match[1] or "", 0)
                most.append(int(number) if isinstance(number, (int, str)) else 0)
    return max(most, default=None)
