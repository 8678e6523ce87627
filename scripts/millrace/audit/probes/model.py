"""What the model of --model does with a batch of one, and whether it learns a single batch."""

from __future__ import annotations

import contextlib
import copy
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.data import IterableDataset

from millrace.audit.probes.first_batch import length
from millrace.audit.runner import trace
from millrace.audit.runner.digest import walk_tensors
from millrace.audit.runner.listener import Listener, batch_size
from millrace.audit.runner.probes import Seen
from millrace.audit.runner.target import Options, Rank, Target

STEPS, SECONDS, RATE = 100, 6.0, 1e-3


def model(target: Target, options: Options, rank: Rank) -> Seen:
    """`one`: how the model takes a batch of one; `overfit`: the loss before and after steps on a
    batch.

    A model without weights (on the device meta) takes shapes alone, and learns nothing.
    """
    loaders = {"train": target.loader(), "val": target.val_loader()}
    seen = {name: _edges(loader, rank, options.ranks) for name, loader in loaders.items()}
    network = target.model()
    if network is None:
        return seen
    loader = Listener(target.loader(), rank, workers=0, max_batches=1)
    whole, core = next(iter(loader.epoch())), loader.original
    frozen = [each for each in network.modules() if network.training and not each.training]
    network.train()
    for each in frozen:
        each.eval()
    norms = [name for name, each in network.named_modules() if isinstance(each, _BatchNorm)]
    if (call := _call(network, whole)) is None:
        return seen | {
            "one": {"unknown": "no way to call the model with a batch was found", "norms": norms}
        }
    [note] = loader.notes(0)
    alone = _alone(core, whole, note)
    if alone is not None:
        seen["one"] = {
            "shapes": {path: list(each.shape) for path, each in walk_tensors(alone)},
            "norms": norms,
        }
        try:
            call(alone)
        except Exception as error:
            seen["one"]["raised"] = trace.described(error)
    if any(each.is_meta for each in network.parameters()):
        return seen
    seen["overfit"] = _overfit(
        network, call, whole, time.monotonic() + min(SECONDS, rank.left() / 2)
    )
    return seen


def _alone(core: Any, whole: Any, note: Seen) -> Any:
    """A batch of one: a sample collated alone, or the first row of a batch that comes whole; None
    if neither can be made."""
    if core is not None and core.batch_sampler is not None:
        data, stream = core.dataset, isinstance(core.dataset, IterableDataset)
        sample = next(iter(data)) if stream else data[next(iter(next(iter(core.batch_sampler))))]
        return core.collate_fn([sample])
    size = batch_size(whole)
    if note["size"] != size or not hasattr(whole, "__dict__"):
        return None
    first = copy.copy(whole)
    for name, value in vars(whole).items():
        if hasattr(value, "shape") and len(value.shape) and len(value) == size:
            object.__setattr__(first, name, value[:1])
    return first


def _edges(loader: Any, rank: Rank, ranks: int) -> Seen:
    """What of a loader says how large its last batch is."""
    core = Listener(loader, rank, workers=0).original if loader is not None else None
    if core is None:
        return {}
    iterable = isinstance(core.dataset, IterableDataset)
    seen = {
        "samples": length(core.dataset if iterable else core.sampler),
        "batch_size": core.batch_size,
    }
    # In a world of one a DistributedSampler gives what all ranks would share.
    replicas = ranks if getattr(core.sampler, "num_replicas", 0) == 1 else 1
    return seen | {"drop_last": core.drop_last, "iterable": iterable, "replicas": replicas}


def _call(network: Any, batch: Any) -> Callable[[Any], Any] | None:
    """The way to call a model that works with a batch: whole, by names, or its first part."""
    ways = [network]
    if hasattr(network, "training_step"):
        ways = [lambda each: network.training_step(each, 0)]
    elif isinstance(batch, Mapping):
        ways += [lambda each: network(**each), lambda each: network(next(walk_tensors(each))[1])]
    elif isinstance(batch, (list, tuple)):
        ways = [lambda each: network(each[0]), lambda each: network(*each), network]
    for way in ways:
        with contextlib.suppress(Exception):
            way(batch)
            return way
    return None


def _loss(given: Any, batch: Any) -> torch.Tensor | None:
    """The loss that a model gives, or the usual one of (inputs, targets): cross entropy or squared
    error."""
    given = given.get("loss") if isinstance(given, Mapping) else getattr(given, "loss", given)
    if given is None or given.dim() == 0:
        return given
    wanted = batch[1] if isinstance(batch, (list, tuple)) and len(batch) > 1 else None
    if not isinstance(wanted, torch.Tensor):
        return None
    if wanted.dtype == torch.int64 and given.dim() == wanted.dim() + 1:
        return functional.cross_entropy(given, wanted)
    return (
        functional.mse_loss(given, wanted.to(given.dtype)) if given.shape == wanted.shape else None
    )


def _overfit(network: Any, call: Callable[[Any], Any], batch: Any, until: float) -> Seen:
    """Steps along the signs of the gradient, by hand: torch.optim imports a compiler for
    seconds."""
    weights = [each for each in network.parameters() if each.requires_grad]
    losses: list[float] = []
    try:
        while len(losses) < STEPS and time.monotonic() < until:
            if (loss := _loss(call(batch), batch)) is None:
                return {
                    "unknown": (
                        "the model gives no loss, and the batch no target that fits its output"
                    )
                }
            losses.append(float(loss.detach()))
            slopes = torch.autograd.grad(loss, weights, allow_unused=True)
            for weight, slope in zip(weights, slopes, strict=True):
                weight.data.sub_(RATE * slope.sign() if slope is not None else 0)
    except Exception as error:
        return {"unknown": f"{type(error).__name__}: {error}"}
    return {"size": batch_size(batch), "steps": len(losses), "first": losses[0], "last": losses[-1]}
