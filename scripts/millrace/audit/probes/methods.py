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
from torch.utils.data import IterableDataset, get_worker_info

from millrace.audit.runner import trace
from millrace.audit.runner.digest import fields
from millrace.audit.runner.tap import Functions, Noted, Tap, reseed
from millrace.audit.runner.target import Options, Rank, Target
from millrace.audit.runner.walk import parts, walk

SAMPLES, DEPTH = 4, 20
SENT = ("spawn", "forkserver")


def methods(target: Target, options: Options, rank: Rank) -> dict[str, Any]:
    """`pickled`: what cannot be sent; `files`: open ones; `runs`: the same samples by each method,
    twice."""
    loader = Tap(target.loader(), rank, workers=0).original
    if not getattr(loader, "num_workers", None):
        return {"workers": None if loader is None else 0}
    context, batched = loader.multiprocessing_context, loader.batch_sampler is not None
    own = options.start_method or (context and context.get_start_method())
    seen: dict[str, Any] = {"workers": loader.num_workers, "own": own, "runs": {}, "pickled": []}
    seen["files"] = [path for path, each in walk(loader.dataset, "dataset") if _open(each)]
    script = options.loader.rpartition(":")[0]
    if script.endswith(".py"):
        # Spawned workers import the user's script first, as they do where it is run.
        sys.modules["__main__"].__file__, sys.modules["__main__"].__spec__ = (
            str(Path(script).resolve()),
            None,
        )
    view, drawn = copy.copy(loader), []
    vars(view).update(pin_memory=False, timeout=0, generator=None)
    if not isinstance(loader.dataset, IterableDataset):
        drawn = next(iter(loader.batch_sampler), []) if batched else islice(loader.sampler, SAMPLES)
        drawn = list(islice(drawn, SAMPLES))
    began = time.monotonic()
    for name in ("fork", "fork again", *([own] if own in SENT else SENT)):
        # A large data set takes long to send: it is sent twice only if there is time.
        if name == "forkserver" != own and rank.left() < time.monotonic() - began:
            break
        reseed(options.seed)
        method = name.split()[0]
        torch.multiprocessing.set_start_method(
            method, force=True
        )  # also for what a script starts itself
        how = {
            "max_batches": 2 if batched else 2 * SAMPLES,
            "indices": [drawn, drawn] if drawn else None,
        }
        tap = Tap(view, rank, 1, method, functions=Holding, **how)
        try:
            tap.run(share=math.inf)  # half of the samples would prove nothing
        except Exception as error:
            sent = {
                part: getattr(loader, part) for part in ("dataset", "collate_fn", "worker_init_fn")
            }
            bad = [unpicklable(each, part) for part, each in sent.items()] if method in SENT else []
            if any(bad):
                seen["pickled"] = list(filter(None, bad))
                break
            log = (rank.scratch / f"{rank.rank}.log").read_text(errors="replace")
            seen["runs"][name] = {
                "raised": trace.described(error),
                "unguarded": "bootstrapping phase" in log,
            }
            continue
        finally:
            tap.close()
        notes, digests = tap.notes(0), {}
        for number, note in enumerate(notes):
            place = number % (len(notes) // 2) if drawn else number
            for part, content in enumerate([*note["samples"], note["fields"]]):
                for field, each in content.items():
                    digests.setdefault(f"{place} {part}: {field}", []).append(each)
        seen["runs"][name] = {"digests": digests, "holds": notes[0]["holds"] if notes else {}}
    return seen


class Holding(Functions):
    """Notes also the fields of the batch, and what the worker's data set holds."""

    def collate_fn(self, samples: Any) -> Noted:
        note, batch = super().collate_fn(samples)
        holds = {
            path: type(each).__name__ for path, each in walk(get_worker_info().dataset, "dataset")
        }
        return Noted({**note, "fields": fields(batch), "holds": holds}, batch)


def unpicklable(value: Any, path: str) -> dict[str, str] | None:
    """Why a part cannot be sent to a new process, and the path of the innermost thing that is the
    cause."""
    bad, below = None, [(path, value)]
    while below:
        path, value = below.pop(0)
        try:
            ForkingPickler.dumps(value)
        except Exception as error:
            what = f"{type(value).__module__}.{getattr(value, '__qualname__', type(value).__qualname__)}"
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
