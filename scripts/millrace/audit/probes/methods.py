"""The same samples from workers that are forked and spawned, and what cannot be sent to them."""

from __future__ import annotations

import copy
import io
import math
from itertools import islice
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch

from millrace.audit.runner import trace
from millrace.audit.runner.listener import Listener, is_stream, reseed
from millrace.audit.runner.probes import Seen
from millrace.audit.runner.target import Rank, Target
from millrace.audit.runner.walk import walk

SAMPLES = 4
SENT = ("spawn", "forkserver")


def methods(target: Target, rank: Rank) -> Seen | None:
    """`open`: files that the data set holds; `pickled`: what cannot be sent; `runs`: the same
    samples by fork, by fork again, and by the method `sent`."""
    # As where it is the default: locks and shared values of the script are made for that method.
    torch.multiprocessing.set_start_method("spawn", force=True)
    loader = Listener(target.loader(), rank, workers=0).original
    if loader is None:
        return None
    if not loader.num_workers:
        return {"workers": 0}

    context = loader.multiprocessing_context
    own = target.options.start_method or (context and context.get_start_method())
    seen: Seen = {
        "workers": loader.num_workers,
        "own": own,
        "sent": own if own in SENT else "spawn",
        "runs": [],
        "open": _open_files(loader.dataset),
        "pickled": _unpicklable_parts(loader),
    }
    if seen["pickled"]:
        return seen

    reseed()
    drawn = _drawn(loader)  # once: a sampler may count its own epochs
    for method in ("fork", "fork", seen["sent"]):
        seen["runs"].append(_run(loader, drawn, method, rank))
    return seen


def _open_files(data: Any) -> list[str]:
    """The places of files that are open before workers start."""
    places = []
    for place, value in walk(data, "dataset", limit=1000):
        if isinstance(value, io.BufferedReader) and not value.closed:
            places.append(place)
    return places


def _run(loader: Any, drawn: list[Any], method: str, rank: Rank) -> Seen:
    """`digests` of the same samples, twice, or what two runs have `raised`: on a busy machine a
    worker may abort once."""
    raised: Seen = {}
    for _ in range(2):
        reseed()
        try:
            notes = _notes(loader, drawn, method, rank)
        except Exception as error:
            raised = {"raised": trace.described(error, rank.log())}
        else:
            return {"digests": _digests(notes, twice=bool(drawn))}
    return raised


def _drawn(loader: Any) -> list[Any]:
    """A few indices that the sampler draws; none for a stream."""
    if is_stream(loader):
        return []
    drawn = loader.sampler
    if loader.batch_sampler is not None:
        drawn = next(iter(loader.batch_sampler), [])
    return list(islice(drawn, SAMPLES))


def _notes(loader: Any, drawn: list[Any], method: str, rank: Rank) -> list[Seen]:
    """Notes of two batches, the same samples if indices were drawn, from a worker that is started
    by the method."""
    torch.multiprocessing.set_start_method(method, force=True)  # also for what a script starts
    view = copy.copy(loader)
    vars(view).update(pin_memory=False, timeout=0, generator=None)
    is_batched = loader.batch_sampler is not None
    if drawn and is_batched:
        vars(view)["batch_sampler"] = [drawn, drawn]
    elif drawn:
        vars(view)["sampler"] = drawn * 2
    most = 2 if is_batched else 2 * SAMPLES
    tap = Listener(view, rank, 1, method, max_batches=most)
    try:
        tap.run(share=math.inf)  # half of the samples would prove nothing
    finally:
        tap.close()
    return tap.notes(0)


def _digests(notes: list[Seen], twice: bool) -> dict[str, list[str]]:
    """Contents of fields by their places; `twice`: the second half has the samples of the first."""
    digests: dict[str, list[str]] = {}
    for number, note in enumerate(notes):
        place = number % (len(notes) // 2) if twice else number
        contents = [*note["samples"], {"the batch": note["batch"]}]
        for part, fields in enumerate(contents):
            for field, content in fields.items():
                digests.setdefault(f"{place} {part}: {field}", []).append(content)
    return digests


def _unpicklable_parts(loader: Any) -> list[dict[str, str]]:
    """What of a loader cannot be sent to a new process, and why."""
    unsent = []
    for name in ("dataset", "collate_fn", "worker_init_fn"):
        try:
            ForkingPickler.dumps(getattr(loader, name))
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            # Locks and shared values are sent only as a process starts: the run shows it.
            if "through inheritance" not in text:
                unsent.append({"name": name, "text": text})
    return unsent
