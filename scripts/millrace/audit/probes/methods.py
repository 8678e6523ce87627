"""The same samples from workers that are forked, spawned and served, and what cannot be sent to
them."""

from __future__ import annotations

import copy
import io
import math
import sys
import time
from itertools import islice
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from millrace.audit.runner import trace
from millrace.audit.runner.digest import fields
from millrace.audit.runner.listener import Functions, Listener, Noted, reseed
from millrace.audit.runner.probes import Seen
from millrace.audit.runner.target import Options, Rank, Target
from millrace.audit.runner.walk import parts, walk

SAMPLES, DEPTH = 4, 20
SENT = ("spawn", "forkserver")


def methods(target: Target, options: Options, rank: Rank) -> Seen:
    """`pickled`: what cannot be sent; `files`: open ones; `runs`: the same samples by each method,
    twice."""
    loader = Listener(target.loader(), rank, workers=0).original
    if loader is None:
        return {"workers": None}
    if not getattr(loader, "num_workers", None):
        return {"workers": 0}
    context = loader.multiprocessing_context
    own = options.start_method or (context and context.get_start_method())
    seen: Seen = {"workers": loader.num_workers, "own": own, "runs": {}, "pickled": []}
    seen["files"] = [path for path, each in walk(loader.dataset, "dataset") if _open(each)]
    script = options.loader.rpartition(":")[0]
    if script.endswith(".py"):
        # Spawned workers import the user's script first, as they do where it is run.
        main = sys.modules["__main__"]
        main.__file__, main.__spec__ = str(Path(script).resolve()), None
    view, drawn = copy.copy(loader), _drawn(loader)
    vars(view).update(pin_memory=False, timeout=0, generator=None)
    began = time.monotonic()
    for name in ("fork", "fork again", *([own] if own in SENT else SENT)):
        # A large data set takes long to send: it is sent twice only if there is time.
        if name == "forkserver" != own and rank.left() < time.monotonic() - began:
            break
        reseed(options.seed)
        try:
            notes = _notes(view, drawn, name.split()[0], rank)
        except Exception as error:
            seen["pickled"] = _unpicklable_parts(loader) if name in SENT else []
            if seen["pickled"]:
                break
            seen["runs"][name] = _raised(error, rank)
            continue
        holds = notes[0]["holds"] if notes else {}
        seen["runs"][name] = {"digests": _digests(notes, bool(drawn)), "holds": holds}
    return seen


def _drawn(loader: Any) -> list[Any]:
    """A few indices that the sampler draws; none for a stream."""
    if isinstance(loader.dataset, IterableDataset):
        return []
    if loader.batch_sampler is None:
        return list(islice(loader.sampler, SAMPLES))
    return list(islice(next(iter(loader.batch_sampler), []), SAMPLES))


def _notes(view: Any, drawn: list[Any], method: str, rank: Rank) -> list[Seen]:
    """Notes of two batches, the same samples if indices were drawn, from a worker that is started
    by the method."""
    torch.multiprocessing.set_start_method(method, force=True)  # also for what a script starts
    tap = HoldingListener(
        view,
        rank,
        1,
        method,
        max_batches=2 * SAMPLES if view.batch_sampler is None else 2,
        indices=[drawn, drawn] if drawn else None,
    )
    try:
        tap.run(share=math.inf)  # half of the samples would prove nothing
    finally:
        tap.close()
    return tap.notes(0)


def _unpicklable_parts(loader: Any) -> list[dict[str, str]]:
    names = ("dataset", "collate_fn", "worker_init_fn")
    return list(filter(None, (unpicklable(getattr(loader, name), name) for name in names)))


def _raised(error: Exception, rank: Rank) -> Seen:
    """What a run raised; `unguarded`: a script starts workers when it is imported."""
    log = (rank.scratch / f"{rank.rank}.log").read_text(errors="replace")
    return {"raised": trace.described(error), "unguarded": "bootstrapping phase" in log}


def _digests(notes: list[Seen], twice: bool) -> dict[str, list[str]]:
    """Contents of fields by their places; `twice`: the second half has the samples of the first."""
    digests: dict[str, list[str]] = {}
    for number, note in enumerate(notes):
        place = number % (len(notes) // 2) if twice else number
        for part, content in enumerate([*note["samples"], note["fields"]]):
            for field, each in content.items():
                digests.setdefault(f"{place} {part}: {field}", []).append(each)
    return digests


class Holding(Functions):
    """Notes also the fields of the batch, and what the worker's data set holds."""

    def collate_fn(self, samples: Any) -> Noted:
        note, batch = super().collate_fn(samples)
        holds = {
            path: type(each).__name__ for path, each in walk(get_worker_info().dataset, "dataset")
        }
        return Noted({**note, "fields": fields(batch), "holds": holds}, batch)


class HoldingListener(Listener):
    def listen(self, loader: DataLoader) -> Functions:
        return Holding(loader)


def unpicklable(value: Any, path: str) -> dict[str, str] | None:
    """Why a part cannot be sent to a new process, and the path of the innermost thing that is the
    cause."""
    bad, below = None, [(path, value)]
    while below:
        path, value = below.pop(0)
        try:
            ForkingPickler.dumps(value)
        except Exception as error:
            name = getattr(value, "__qualname__", type(value).__qualname__)
            what = f"{type(value).__module__}.{name}"
            bad = {"path": path, "what": what, "text": f"{type(error).__name__}: {error}"}
            deeper = path.count(".") < DEPTH
            below = [(f"{path}.{name}", each) for name, each in parts(value)] if deeper else []
    return bad


def _open(value: Any) -> bool:
    """An open file or HDF5 handle, which processes must not share."""
    if isinstance(value, io.IOBase):
        # An unbuffered one is read by os.pread or mapped, which have no position.
        return not isinstance(value, (io.BytesIO, io.StringIO, io.FileIO)) and not value.closed
    return type(value).__module__.startswith("h5py") and bool(value)
