"""What of a loader says how large its last batch is; what the model does with a batch of one."""

from __future__ import annotations

from typing import Any

from torch.utils.data import BatchSampler

from millrace.audit.probes.model import batch_of_one
from millrace.audit.runner.listener import Listener, is_stream, length
from millrace.audit.runner.probes import Seen
from millrace.audit.runner.target import Rank, Target


def edges(target: Target, rank: Rank) -> Seen:
    """`train`, `val`: what makes the last batch of each loader; {} if it is no DataLoader. `one`:
    how the model of --model takes a batch of one; {} without one."""
    loaders = {"train": target.loader(), "val": target.val_loader()}
    seen = {name: _edges(loader, rank, target.options.ranks) for name, loader in loaders.items()}
    network = target.model()
    seen["one"] = {}
    if network is not None:
        seen["one"] = batch_of_one(network, target.loader(), rank)
    return seen


def _edges(loader: Any, rank: Rank, ranks: int) -> Seen:
    core = Listener(loader, rank, workers=0).original
    if core is None:
        return {}
    iterable = is_stream(core)
    batches = core
    # One that the user has made is told of by the loader in no other way.
    if type(core.batch_sampler) is BatchSampler:
        batches = core.batch_sampler
    return {
        "samples": length(core.dataset if iterable else batches.sampler),
        "batch_size": batches.batch_size,
        "drop_last": batches.drop_last,
        "iterable": iterable,
        # In a world of one a DistributedSampler gives what all ranks would share.
        "replicas": ranks if getattr(batches.sampler, "num_replicas", 0) == 1 else 1,
    }
