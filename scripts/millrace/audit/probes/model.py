"""What the model of --model does with a batch of one: how it is called, and where that batch is
from."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from torch.nn.modules.batchnorm import _BatchNorm

from millrace.audit.probes.batches import order, samples_of
from millrace.audit.runner import trace
from millrace.audit.runner.digest import walk_tensors
from millrace.audit.runner.listener import Listener, batch_size, is_stream
from millrace.audit.runner.probes import Seen
from millrace.audit.runner.target import Rank


def batch_of_one(network: Any, loader: Any, rank: Rank) -> Seen:
    """`norms`: the batch norms; `taken`: the model takes a batch of one; `raised`: what it raises
    on one; `unknown`: why it was not tried.

    A model without weights (on the device meta) takes shapes alone.
    """
    # Parts that the user has frozen stay so.
    frozen = [part for part in network.modules() if network.training and not part.training]
    network.train()
    for part in frozen:
        part.eval()
    norms = [name for name, part in network.named_modules() if isinstance(part, _BatchNorm)]
    seen: Seen = {"norms": norms}

    tap = Listener(loader, rank, workers=0, max_batches=1)
    batch = next(iter(tap.epoch()))
    call = _call(network, batch)
    if call is None:
        return {**seen, "unknown": "no way to call the model with a batch was found"}
    [note] = tap.notes(0)
    alone = _alone(tap.original, batch, note["size"])
    if alone is None:
        return {**seen, "unknown": "no batch of one could be made"}
    try:
        call(alone)
    except Exception as error:
        return {**seen, "raised": trace.described(error)}
    return {**seen, "taken": True}


def _call(network: Any, batch: Any) -> Callable[[Any], Any] | None:
    """The way to call a model that works with a batch: whole, by names, or its first part."""
    ways: list[Callable[[Any], Any]] = [network]
    if hasattr(network, "training_step"):
        ways = [lambda batch: network.training_step(batch, 0)]
    elif isinstance(batch, Mapping):
        ways.append(lambda batch: network(**batch))
        ways.append(lambda batch: network(next(walk_tensors(batch))[1]))
    elif isinstance(batch, (list, tuple)):
        ways = [lambda batch: network(batch[0]), lambda batch: network(*batch), network]
    for way in ways:
        with suppress(Exception):
            way(batch)
            return way
    return None


def _alone(core: Any, batch: Any, size: int) -> Any:
    """A batch of one: a sample collated alone, or the first row of a batch of `size` that comes
    whole; None if neither can be made."""
    if core is not None and core.batch_sampler is not None:
        if is_stream(core):
            return core.collate_fn([next(iter(core.dataset))])
        drawn = next(iter(order(core)))
        return core.collate_fn(samples_of(core, list(drawn)[:1]))

    if batch_size(batch) != size or not hasattr(batch, "__dict__"):
        return None
    row = copy.copy(batch)
    for name, value in vars(batch).items():
        if hasattr(value, "shape") and len(value.shape) and len(value) == size:
            object.__setattr__(row, name, value[:1])
    return row
