"""What a loader promises: samples that collate, pinning, lengths, paths, and room for its
batches."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterator, Sequence
from itertools import islice, takewhile
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import IterableDataset
from torch.utils.data._utils import pin_memory as torchs

from millrace.audit.probes.first_batch import length
from millrace.audit.runner import trace
from millrace.audit.runner.digest import describe, digest, members, walk_tensors
from millrace.audit.runner.listener import Listener, index_list, reseed
from millrace.audit.runner.probes import Seen
from millrace.audit.runner.target import Options, Rank, Target

SECONDS, ORDERS, ITEMS, PATHS, DEPTH = 4.0, 3, 32, 5000, 4
LACKING = ("IndexError", "KeyError")


def contract(target: Target, options: Options, rank: Rank) -> Seen:
    """Read samples and batches in this process, without workers."""
    loader = Listener(target.loader(), rank, workers=0).original
    if loader is None:
        return {}
    reseed(options.seed)
    data, seconds = loader.dataset, min(SECONDS, rank.left() / 4)
    shm = os.statvfs("/dev/shm") if os.path.isdir("/dev/shm") else None
    seen: Seen = {
        "samples": length(data),
        "steps": length(loader),
        "ranks": options.ranks,
        "workers": loader.num_workers,
        "prefetch": loader.prefetch_factor or 2,
        "pin_memory": loader.pin_memory,
        "shm": shm and shm.f_bavail * shm.f_frsize,
        "files": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        "open": len(os.listdir("/dev/fd")),
        "strategy": torch.multiprocessing.get_sharing_strategy(),
        "paths": listed(data),
        "collate": collate(loader, time.monotonic() + seconds),
    }
    until = time.monotonic() + seconds
    if isinstance(data, IterableDataset) and seen["samples"] is not None:
        counted = sum(1 for _ in takewhile(lambda _: time.monotonic() < until, data))
        seen["counted"] = counted if time.monotonic() < until else None
    elif seen["samples"] and seen["collate"]["usual"]:
        seen["items"] = items(data, seen["samples"], options.seed, until)
    return seen


def collate(loader: Any, until: float) -> Seen:
    """Collate batches as drawn in several orders.

    `usual`: the sampler draws whole numbers below the length.
    """
    seen: Seen = {"usual": True, "batches": 0, "bytes": 0, "tensors": 0}
    try:
        for samples in _batches(loader, seen):
            try:
                batch = loader.collate_fn(
                    samples if loader.batch_sampler is not None else samples[0]
                )
            except Exception as error:
                seen["failed"] = {**trace.described(error), **unlike(samples), "size": len(samples)}
                break
            if seen["batches"] == 0 and loader.pin_memory:
                seen["pin"] = pin(batch)
            needed, tensors = shared_bytes(batch)
            seen |= {"bytes": max(seen["bytes"], needed), "tensors": max(seen["tensors"], tensors)}
            seen["batches"] += 1
            if time.monotonic() > until:
                break
    except Exception as error:  # of the data set or the sampler
        seen["raised"] = trace.described(error)
    return seen


def _batches(loader: Any, seen: Seen) -> Iterator[list[Any]]:
    """Samples of batches in several orders; `usual` turns False where indices are of no row."""
    if isinstance(loader.dataset, IterableDataset):
        yield from _stream(loader)
        return
    for order in range(ORDERS):
        for sampler in (loader.sampler, loader.batch_sampler):
            if hasattr(sampler, "set_epoch"):
                sampler.set_epoch(order)
        batched = loader.batch_sampler is not None
        for each in loader.batch_sampler if batched else loader.sampler:
            drawn = each if batched else [each]
            rows = length(loader.dataset) or 0
            if not all(type(index) is int and 0 <= index < rows for index in index_list(drawn)):
                seen["usual"] = False
            yield _samples(loader.dataset, drawn)


def _stream(loader: Any) -> Iterator[list[Any]]:
    source, size = iter(loader.dataset), loader.batch_size or 1
    while samples := list(islice(source, size)):
        if len(samples) < size and loader.drop_last:
            return
        yield samples


def _samples(data: Any, indices: Any) -> list[Any]:
    if hasattr(data, "__getitems__"):
        return data.__getitems__(indices)
    return [data[index] for index in indices]


def _read(data: Any, index: int) -> Seen:
    """The digest of a sample, or what it raised."""
    try:
        value = data[index]
    except Exception as error:
        return trace.described(error)
    # An index or a class says nothing of where a sample comes from.
    parts = {
        name: each
        for name, each in members(value)
        if getattr(each, "shape", ()) or type(each) is str
    }
    return {"digest": digest(parts or value)}


def items(data: Any, size: int, seed: int, until: float) -> Seen:
    """The last sample and the one beyond it: `equals` an earlier one; lists that are not as long as
    `len`."""

    def get(index: int) -> Seen:
        reseed(seed)
        return _read(data, index)

    seen: Seen = {"last": get(size - 1), "beyond": get(size)}
    if "digest" in seen["beyond"]:
        # Two in a row that differ: contents that neighbours share prove nothing.
        two = [get(size), get(size + 1)]
        places = takewhile(
            lambda _: two[0] != two[1] and time.monotonic() < until, range(min(size, ITEMS))
        )
        seen["equals"] = next(
            (place for place in places if [get(place), get(place + 1)] == two), None
        )
        held = dict(members(data))
        lists = {
            name: len(each) for name, each in held.items() if type(each) is not str and length(each)
        }
        # Those that say where the data set ends.
        more = {
            name: many for name, many in lists.items() if many > size and "digest" in get(many - 1)
        }
        longer = {name: many for name, many in more.items() if get(many).get("type") in LACKING}
        numbers = {name: each for name, each in held.items() if type(each) is int}
        seen |= {"lists": lists, "longer": longer, "numbers": numbers}
    return seen


def listed(data: Any) -> list[Seen]:
    """Lists of paths that data sets have as attributes: which files are missing, or newer than an
    index."""
    seen, owner = [], data
    for _ in range(DEPTH):
        attributes = list(members(owner))
        texts = [str(each) for _, each in attributes if isinstance(each, (str, Path)) and str(each)]
        for name, rows in attributes:
            if isinstance(rows, (list, tuple)):
                row = _files(data, rows, texts)
                seen += [{"name": name, **row}] if row else []
        owner = getattr(owner, "dataset", None)
    return seen


def _files(data: Any, rows: Sequence[Any], texts: list[str]) -> Seen | None:
    """What of a list of paths is missing; None if it is none. `texts`: attributes beside it, which
    may be its folder or its index."""
    roots = ["", *filter(os.path.isdir, texts)]
    named = [_path(row) for row in rows[:PATHS]]
    paths = [path for path in named if path is not None]
    if len(paths) < len(named):
        return None
    places = [_found(path, roots) for path in paths]
    if not any(places):
        return None
    gone = [path for path, place in zip(paths, places, strict=True) if not place]
    row = {"paths": len(paths), "missing": len(gone), "names": gone[:5]}
    spare = gone and length(data) == len(rows) and "digest" in _read(data, places.index(""))
    row["needed"] = not spare
    for index in set(filter(os.path.isfile, texts)) - set(places):
        written = os.path.getmtime(index) + 1
        newer = [place for place in places if place and os.path.getmtime(place) > written]
        if newer:
            row |= {"index": index, "newer": newer[:5]}
    return row


def _found(path: str, roots: list[str]) -> str:
    """The file under the first root that has it; "" if none has."""
    tried = (os.path.join(root, path) for root in roots)
    return next(filter(os.path.exists, tried), "")


def _path(row: Any) -> str | None:
    """The path in a row of a list: the row itself, or its first text with a suffix."""
    parts = [row] if isinstance(row, (str, Path)) else [each for _, each in members(row)]
    return next(
        (str(each) for each in parts if isinstance(each, (str, Path)) and Path(each).suffix), None
    )


def pin(batch: Any) -> Seen:
    """Tensors that torch's own walk does not pin, and fields that a pin_memory() of the user's
    loses.

    Pinning needs a GPU: here, in the process of the probe, Tensor.pin_memory gives a copy that is
    noted.
    """
    copies: list[torch.Tensor] = []

    def copy(tensor: torch.Tensor, *_: Any) -> torch.Tensor:
        copies.append(tensor.detach().clone())
        return copies[-1]

    own, torch.Tensor.pin_memory = torch.Tensor.pin_memory, copy
    try:
        after = torchs.pin_memory(batch)
    except Exception as error:
        return {"type": describe(batch)["type"], "raised": trace.described(error)}
    finally:
        torch.Tensor.pin_memory = own
    before, pinned = dict(walk_tensors(batch)), dict(walk_tensors(after))
    done = set(map(id, copies))
    left = {path: each for path, each in pinned.items() if id(each) not in done}
    # Lengths may stay on the CPU, as PackedSequence's do: whole numbers, one a sample.
    missed = [path for path, each in left.items() if each.dim() > 1 or each.is_floating_point()]
    lost = [path for path in before if path not in pinned]
    note = {"type": describe(batch)["type"], "pinned": len(copies), "none": after is None}
    return {**note, "missed": missed, "lost": lost}


def shared_bytes(batch: Any) -> tuple[int, int]:
    """What a batch takes in shared memory, each storage once and in whole pages; and how many
    storages."""
    page, storages = os.sysconf("SC_PAGE_SIZE"), {}
    for _, tensor in walk_tensors(batch):
        if tensor.layout is torch.strided and tensor.numel():
            storage = tensor.untyped_storage()
            storages[storage.data_ptr()] = -(-storage.nbytes() // page) * page
    return sum(storages.values()), len(storages)


def shapes(value: Any, path: str = "") -> dict[str, str]:
    """Type, dtype and shape of all parts of a sample, by path; of texts only the type."""
    said = describe(value)
    said = {name: each for name, each in said.items() if name != "length" or type(value) is not str}
    parts = {path: " ".join(map(str, said.values()))}
    if "shape" not in said and not hasattr(value, "tobytes"):
        for name, each in members(value):
            parts |= shapes(each, f"{path}.{name}" if path else name)
    return parts


def unlike(samples: list[Any]) -> Seen:
    """The innermost field in which two samples of a batch differ in type or shape, and both."""
    first = shapes(samples[0])
    for other in map(shapes, samples[1:]):
        for path in sorted({*first, *other}, key=len, reverse=True):
            pair = [first.get(path, "missing"), other.get(path, "missing")]
            if pair[0] != pair[1]:
                return {"field": path or "the sample", "shapes": pair}
    return {}
