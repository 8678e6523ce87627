"""`open_tars`, the loader of any tars: what bounds a batch, what a sample costs, and when no
workers are started."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from millrace.asr.planning.cut import BatchBudget
from millrace.asr.planning.epochs import Basis, EpochPlans, digest
from millrace.asr.planning.loader import RankLoader, checked_place
from millrace.asr.planning.planner import WINDOW
from millrace.common.errors import MillraceError
from millrace.common.loading.arguments import above_zero, function, path_of, several, whole
from millrace.tars.dataset import Decode, TarDataset
from millrace.tars.index import open_indices, tar_paths
from millrace.tars.samples import TarSamples

Cost = str | Mapping[str, float]
# Batches that are announced to the kernel ahead of the one that is read.
_AHEAD = 4


class _DirectReads:
    """The batches of a feed, each read where it is asked for.

    It stands in the place of the DataLoader, whose calls cost more than reading a small batch.
    """

    num_workers = 0

    def __init__(self, feed: Any) -> None:
        self.feed = feed

    def __iter__(self) -> Iterator[Any]:
        return map(self.feed.__getitem__, self.feed)


class TarLoader(RankLoader):
    """Batches of samples out of tars, as `open_tars` gives them.

        from millrace import open_tars

        loader = open_tars("train-*.tar", batch_size=8)
        print(len(loader), "steps for", len(loader.samples), "samples")
        for batch in loader:
            state = loader.state_dict()  # JSON; after this batch
            break
        loader.load_state_dict(state)
        rest = [key for batch in loader for key in batch.ids]

    Without `decode` there is nothing to compute: then this process reads, whatever `workers` says,
    and no bytes have to cross from another one. `samples` are all that there are, of all ranks.
    `state_dict` and `load_state_dict` go on at the next batch, with any number of ranks and
    workers; `set_epoch` shuffles anew.
    """

    def __init__(
        self, dataset: TarDataset, workers: int, plans: EpochPlans, **options: Any
    ) -> None:
        only_reads = dataset.decode is None
        super().__init__(dataset, 0 if only_reads else workers, plans, **options)
        self.samples = dataset.samples
        if only_reads:
            self.data_loader = _DirectReads(self._feed)
            self._feed.workers = _AHEAD


def open_tars(  # noqa: PLR0913 - each is a choice of its own, given by name
    paths: str | os.PathLike | Sequence[str | os.PathLike],
    *,
    batch_size: int | None = None,
    cost: Cost | None = None,
    batch_cost: float | None = None,
    fields: Iterable[str] | None = None,
    keys: Callable[[str], bool] | Iterable[str] | None = None,
    ids: str = "key",
    decode: Decode | None = None,
    seed: int = 0,
    rank: int | None = None,
    world_size: int | None = None,
    workers: int = 0,
    cache_dir: str | os.PathLike | None = None,
    **options: Any,
) -> TarLoader:
    """Shuffled batches of the samples in any tars, those of this rank; no workflow, no manifest.

        from millrace import open_tars

        loader = open_tars("train-*.tar", batch_size=32, fields=["jpg", "cls"], decode={"cls": int})
        for epoch in range(2):
            loader.set_epoch(epoch)
            for batch in loader:
                print(batch.ids[0], len(batch.samples[0]["jpg"]), batch.samples[0]["cls"])
        loader.load_state_dict(loader.state_dict())

    Args:
        paths: a pattern, or a list of paths and patterns.
        batch_size: samples of a batch.
        cost: batches by cost instead (or both bounds): "bytes" of the samples, a field for its
            bytes alone, or a number above 0 for each key.
        batch_cost: the bound: number of samples times the highest cost among them.
        fields: what is read of each sample; without it, all that is there.
        keys: the samples to take: their ids, or a function that says so of an id.
        ids: "key", or "tar" for tars whose keys repeat: "<tar without .tar>/<key>", here and in
            `keys`, `cost` and `batch.ids`.
        decode: functions of a field's bytes by field, or one function of the whole sample and a
            numpy generator, which is the same for any number of workers. Runs in the workers.
        seed: of the shuffle and of these generators.
        rank: of `world_size`; without both, those of the process that runs.
        workers: processes that read and decode; none are started if nothing is decoded.
        cache_dir: the folder of indices; without it, `.millrace` beside the tars.
        options: those of `BatchLoader`, such as `pin_memory` and `max_bad_fraction`.

    Members are grouped as webdataset does: the key ends at the first dot of the base name, the rest
    in lower case is the field, and files of one key follow each other. Links have the bytes they
    lead to. Every epoch is an exact shuffle of all samples, each once; all ranks take the same
    number of steps, for which a few last batches are smaller. Raises MillraceError for tars that
    are damaged, and for an id that stands twice, by name.
    """
    place = checked_place(rank, world_size)
    budget = _budget(batch_size, cost, batch_cost)
    workers = whole("workers", workers, least=0)
    seed = whole("seed", seed)
    if keys is not None and not callable(keys):
        keys = several("keys", keys)
    if fields is not None:
        fields = list(several("fields", fields))
    if cache_dir is not None:
        cache_dir = path_of("cache_dir", cache_dir)
    samples = TarSamples.of(open_indices(tar_paths(paths), cache_dir), ids)
    if not len(samples):
        raise MillraceError("the tars hold no samples", str(paths), _empty_remedy(samples))
    if keys is not None:
        samples = samples.with_keys(keys)
        if not len(samples):
            remedy = "Choose others, or leave them out"
            raise MillraceError("keys choose no sample", str(paths), remedy)
    if fields is not None:
        samples = samples.with_fields(fields)
    if isinstance(decode, Mapping):
        for field, decode_field in decode.items():
            samples.number_of_field(field)
            function(f"decode of {field}", decode_field)
    else:
        function("decode", decode)

    costs = [_costs(samples, cost)]
    basis: Basis = {
        "seed": seed,
        "batch_size": budget.rows or 0,
        "batch_cost": budget.seconds or 0,
        "samples": samples.digest,
        "cost": digest(costs),
    }
    # Batches of a fixed size need no sorting, and so no windows in which to sort.
    window = None if cost is None else WINDOW
    plans = EpochPlans(costs, budget, seed, place.world_size, basis, window)
    return TarLoader(TarDataset(samples, decode, seed, place.rank), workers, plans=plans, **options)


def _budget(batch_size: int | None, cost: Cost | None, batch_cost: float | None) -> BatchBudget:
    """The bounds of a batch. Raises MillraceError if there is none, or one is given by half."""
    if (cost is None) != (batch_cost is None):
        problem = "cost and batch_cost go together: what a sample costs, and what a batch may"
        raise MillraceError(problem, "open_tars", "Give both, or batch_size alone")
    if batch_size is None and cost is None:
        raise MillraceError("nothing bounds a batch", "open_tars", "Give batch_size, or cost")
    return BatchBudget(
        seconds=None if batch_cost is None else above_zero("batch_cost", batch_cost),
        rows=None if batch_size is None else whole("batch_size", batch_size, least=1),
    )


def _costs(samples: TarSamples, cost: Cost | None) -> np.ndarray:
    """float32 cost of each sample. Raises MillraceError where it is none."""
    if cost is None:
        return np.ones(len(samples), np.float32)
    if isinstance(cost, str):
        sizes = samples.bytes(None if cost == "bytes" else cost)
        return np.maximum(sizes, 1).astype(np.float32)  # empty samples are samples
    if not hasattr(cost, "get"):
        remedy = 'Give "bytes", a field, or a dict with a number for every key'
        raise MillraceError(f"cost is {cost!r}", remedy=remedy)
    numbers = [cost.get(key, np.nan) for key in samples.ids.to_pylist()]
    try:
        costs = np.array(numbers, np.float32)
    except (TypeError, ValueError) as error:
        remedy = "Give cost a number for every key"
        raise MillraceError(f"cost has what is no number ({error})", remedy=remedy) from None
    is_wrong = ~(np.isfinite(costs) & (costs > 0))
    if is_wrong.any():
        row = int(np.argmax(is_wrong))
        problem = f"its cost is {cost.get(str(samples.ids[row]))}, not a number above 0"
        raise MillraceError(problem, samples.place(row), "Give cost a number for every key")
    return costs


def _empty_remedy(samples: TarSamples) -> str:
    skipped = ", ".join(f"{count} with a {reason}" for reason, count in samples.skipped.items())
    return f"Left out: {skipped}" if skipped else "Choose other tars"
