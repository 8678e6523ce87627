"""What the model of --model does with a batch of one, and what of a loader says how large its last
batch is."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from torch.nn.modules.batchnorm import _BatchNorm

from millrace.audit.runner import trace
from millrace.audit.runner.digest import walk_tensors
from millrace.audit.runner.listener import Listener, batch_size, is_stream, length
from millrace.audit.runner.probes import Seen
from millrace.audit.runner.target import Rank, Target


def model(target: Target, rank: Rank) -> Seen:
    """`train`, `val`: what makes the last batch of each loader; `one`: how the model takes a batch
    of one.

    A model without weights (on the device meta) takes shapes alone.
    """
    loaders = {"train": target.loader(), "val": target.val_loader()}
    seen = {name: _edges(loader, rank, target.options.ranks) for name, loader in loaders.items()}
    network = target.model()
    if network is not None:
        _set_training(network)
        seen["one"] = _batch_of_one(network, target.loader(), rank)
    return seen


def _edges(loader: Any, rank: Rank, ranks: int) -> Seen:
    """What of a loader says how large its last batch is."""
    core = None
    if loader is not None:
        core = Listener(loader, rank, workers=0).original
    if core is None:
        return {}
    iterable = is_stream(core)
    return {
        "samples": length(core.dataset if iterable else core.sampler),
        "batch_size": core.batch_size,
        "drop_last": core.drop_last,
        "iterable": iterable,
        # In a world of one a DistributedSampler gives what all ranks would share.
        "replicas": ranks if getattr(core.sampler, "num_replicas", 0) == 1 else 1,
    }


def _set_training(network: Any) -> None:
    """Training mode, but for the parts that the user has frozen."""
    frozen = [part for part in network.modules() if network.training and not part.training]
    network.train()
    for part in frozen:
        part.eval()


def _batch_of_one(network: Any, loader: Any, rank: Rank) -> Seen:
    """`norms`: the batch norms; `shapes` of a batch of one, and what the model `raised` on it."""
    norms = [name for name, part in network.named_modules() if isinstance(part, _BatchNorm)]
    seen: Seen = {"norms": norms}
    tap = Listener(loader, rank, workers=0, max_batches=1)
    batch = next(iter(tap.epoch()))
    call = _call(network, batch)
    if call is None:
        return {**seen, "unknown": "no way to call the model with a batch was found"}

    [note] = tap.notes(0)
    alone = _alone(tap.original, batch, note)
    if alone is None:
        return seen
    seen["shapes"] = {path: list(tensor.shape) for path, tensor in walk_tensors(alone)}
    try:
        call(alone)
    except Exception as error:
        seen["raised"] = trace.described(error)
    return seen


def _alone(core: Any, batch: Any, note: Seen) -> Any:
    """A batch of one: a sample collated alone, or the first row of a batch that comes whole; None
    if neither can be made."""
    if core is not None and core.batch_sampler is not None:
        data = core.dataset
        if is_stream(core):
            return core.collate_fn([next(iter(data))])
        first = next(iter(core.batch_sampler))
        return core.collate_fn([data[next(iter(first))]])

    size = batch_size(batch)
    if note["size"] != size or not hasattr(batch, "__dict__"):
        return None
    row = copy.copy(batch)
    for name, value in vars(batch).items():
        if hasattr(value, "shape") and len(value.shape) and len(value) == size:
            object.__setattr__(row, name, value[:1])
    return row


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
