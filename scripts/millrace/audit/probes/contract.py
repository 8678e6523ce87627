"""Tries what a loader promises, without workers: samples that collate, pinning, what lies beyond
its length, listed files that are missing, and the room for its batches."""

from __future__ import annotations

import dis
import os
import resource
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice, pairwise, takewhile
from numbers import Integral
from typing import Any

import torch
from torch.utils.data import default_collate
from torch.utils.data._utils import pin_memory as torchs

from millrace.audit.probes.batches import collated, order, samples_of
from millrace.audit.probes.listed import paths, roots
from millrace.audit.runner import trace
from millrace.audit.runner.digest import digest, members, walk_tensors
from millrace.audit.runner.listener import Listener, index_list, is_stream, length, reseed
from millrace.audit.runner.probes import Seen
from millrace.audit.runner.target import Rank, Target

SECONDS = 4.0
ORDERS = 3  # of a sampler, to collate other batches
ITEMS = 32  # samples among which the one beyond the end is looked for
PATHS = 5000  # of a list
DEPTH = 4  # of data sets that hold a data set
LACKING = ("IndexError", "KeyError")


def contract(target: Target, rank: Rank) -> Seen | None:
    """Read samples and batches in this process, without workers."""
    loader = Listener(target.loader(), rank, workers=0).original
    if loader is None:
        return None
    reseed()
    data = loader.dataset
    size = length(data)
    seconds = min(SECONDS, rank.left() / 4)
    seen: Seen = {
        "samples": size,
        "pin_memory": loader.pin_memory,
        "paths": listed(data),
        "collate": collate(loader, time.monotonic() + seconds),
        **limits(loader, target.options.ranks),
    }

    until = time.monotonic() + seconds
    if is_stream(loader) and size is not None:
        counted = sum(1 for _ in takewhile(lambda _: time.monotonic() < until, data))
        seen["counted"] = counted if time.monotonic() < until else None
    elif size and seen["collate"]["usual"]:
        seen["items"] = items(data, size, until)
    return seen


def limits(loader: Any, ranks: int) -> Seen:
    """How many batches are in flight, and the room that the machine has for them."""
    shm = None
    if os.path.isdir("/dev/shm"):
        place = os.statvfs("/dev/shm")
        shm = place.f_bavail * place.f_frsize
    return {
        "steps": length(loader),
        "ranks": ranks,
        "workers": loader.num_workers,
        "prefetch": loader.prefetch_factor or 2,
        "shm": shm,
        "files": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        "open": len(os.listdir("/dev/fd")),
        "strategy": torch.multiprocessing.get_sharing_strategy(),
    }


def collate(loader: Any, until: float) -> Seen:
    """Collate batches as drawn in several orders.

    `usual`: the sampler draws whole numbers below the length.
    """
    seen: Seen = {
        "usual": True,
        "batches": 0,
        "bytes": 0,
        "tensors": 0,
    }
    try:
        for samples in _batches(loader, seen):
            try:
                batch = collated(loader, samples)
            except Exception as error:
                by_default = loader.collate_fn is default_collate
                seen["failed"] = {**trace.described(error), "by_default": by_default}
                break
            if seen["batches"] == 0 and loader.pin_memory:
                seen["pin"] = pin(batch)
            sizes = storages(batch)
            seen["bytes"] = max(seen["bytes"], sum(sizes))
            seen["tensors"] = max(seen["tensors"], len(sizes))
            seen["batches"] += 1
            if time.monotonic() > until:
                break
    except Exception as error:  # of the data set or the sampler
        seen["raised"] = trace.described(error)
    return seen


def _batches(loader: Any, seen: Seen) -> Iterator[list[Any]]:
    """Samples of batches in several orders; `usual` turns False where indices are of no row."""
    if is_stream(loader):
        yield from _stream(loader)
        return
    rows = length(loader.dataset) or 0
    for epoch in range(ORDERS):
        for sampler in (loader.sampler, loader.batch_sampler):
            if hasattr(sampler, "set_epoch"):
                sampler.set_epoch(epoch)
        for drawn in order(loader):
            indices = [drawn] if loader.batch_sampler is None else drawn
            for row in index_list(indices):
                if type(row) is not int or not 0 <= row < rows:
                    seen["usual"] = False
            yield samples_of(loader, drawn)


def _stream(loader: Any) -> Iterator[list[Any]]:
    source = iter(loader.dataset)
    size = loader.batch_size or 1
    while samples := list(islice(source, size)):
        if len(samples) < size and loader.drop_last:
            return
        yield samples


def _read(data: Any, index: int) -> Seen:
    """The digest of a sample, or what it raised."""
    try:
        value = data[index]
    except Exception as error:
        return trace.described(error)
    # An index or a class says nothing of where a sample comes from.
    parts = {}
    for name, part in members(value):
        if getattr(part, "shape", ()) or type(part) is str:
            parts[name] = part
    is_empty = any(0 in getattr(part, "shape", ()) for part in parts.values())
    return {"digest": digest(parts or value), "empty": is_empty}


def items(data: Any, size: int, until: float) -> Seen:
    """The `last` sample, and whether the one beyond it `equals` an earlier one.

    `lists` and `numbers`: lengths and values of attributes; `product`: the length is computed as
    one. `longer`: lists that say where the data set ends, beyond its length; `tables`: those of
    them that are tables of offsets. `varies`, if there is an equal one: a sample is drawn anew
    whenever it is read.
    """

    def get(index: int) -> Seen:
        reseed()
        return _read(data, index)

    seen: Seen = {"last": get(size - 1)}
    beyond = [get(size), get(size + 1)]
    if "digest" not in beyond[0]:
        return seen

    seen |= {"lists": {}, "longer": {}, "tables": [], "numbers": {}, "product": _is_product(data)}
    for name, value in members(data):
        many = length(value)
        if type(value) is int:
            seen["numbers"][name] = value
        elif many and type(value) is not str:
            seen["lists"][name] = many
            is_end = many > size and get(many).get("type") in LACKING
            # What is cut off at the end of a list is no sample of its own.
            if is_end and get(many - 1).get("empty") is False:
                seen["longer"][name] = many
                if _is_table(value):
                    seen["tables"].append(name)

    seen["equals"] = None
    # Two in a row that differ: contents that neighbours share prove nothing.
    if beyond[0] != beyond[1]:
        lengths = seen["lists"].values()
        # A list that begins again does so anywhere.
        places = [*range(min(size, ITEMS)), *(size % many for many in lengths if many <= size)]
        in_time = takewhile(lambda _: time.monotonic() < until, places)
        seen["equals"] = _given_again(get, size, beyond, in_time)
    if seen["equals"] is not None:
        seen["varies"] = _read(data, 0) != _read(data, 0)
    return seen


def _given_again(
    get: Callable[[int], Seen], size: int, beyond: list[Seen], places: Iterable[int]
) -> int | None:
    """The place of the two samples that come again `beyond` the length, if indices begin again."""
    for place in places:
        if [get(place), get(place + 1)] == beyond:
            # One that gives the next sample for one it cannot read wraps around nothing.
            starts_again = place == 0 or get(size - place) == get(0)
            return place if starts_again else None
    return None


def _is_product(data: Any) -> bool:
    """Whether the length is computed as a product: how often a list is given."""
    with suppress(TypeError):  # one of C
        return any(step.argrepr == "*" for step in dis.get_instructions(type(data).__len__))
    return False


def _is_table(values: Any) -> bool:
    """Whether a list says where rows begin: numbers that rise from 0, but not one by one."""
    numbers = list(values)
    if not all(isinstance(number, Integral) for number in numbers):
        return False
    rises = all(low < high for low, high in pairwise(numbers))
    return rises and numbers[0] == 0 and numbers[-1] >= len(numbers)


def listed(data: Any) -> list[Seen]:
    """Lists of paths that data sets have as attributes, and which of the files are missing."""
    seen = []
    owner = data
    for _ in range(DEPTH):
        folders = roots(owner)
        for name, rows in members(owner):
            row = None
            if isinstance(rows, (list, tuple)):
                row = _missing(data, rows, folders)
            if row:
                seen.append({"name": name, **row})
        owner = getattr(owner, "dataset", None)
    return seen


def _missing(data: Any, rows: Sequence[Any], folders: list[str]) -> Seen | None:
    """What of a list of paths is missing; None if it is none."""
    named = [next(paths(row), "") for row in rows[:PATHS]]
    gone = [place for place, path in enumerate(named) if not _exists(path, folders)]
    if not all(named) or len(gone) == len(named):
        return None
    size = length(data)
    are_left_out = size == len(rows) - len(gone)
    # It may give a sample all the same.
    are_spare = gone and size == len(rows) and "digest" in _read(data, gone[0])
    return {
        "paths": len(named),
        "missing": len(gone),
        "names": [named[place] for place in gone[:5]],
        "needed": not (are_left_out or are_spare),
    }


def _exists(path: str, folders: list[str]) -> bool:
    return any(os.path.exists(os.path.join(folder, path)) for folder in folders)


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

    kind = kind_of(batch)
    own = torch.Tensor.pin_memory
    torch.Tensor.pin_memory = copy
    try:
        after = torchs.pin_memory(batch)
    except Exception as error:
        return {"type": kind, "raised": trace.described(error)}
    finally:
        torch.Tensor.pin_memory = own

    before = dict(walk_tensors(batch))
    pinned = dict(walk_tensors(after))
    done = set(map(id, copies))
    missed = []
    for path, tensor in pinned.items():
        # Lengths may stay on the CPU, as PackedSequence's do: whole numbers, one a sample.
        is_lengths = tensor.dim() <= 1 and not tensor.is_floating_point()
        if id(tensor) not in done and not is_lengths:
            missed.append(path)
    return {
        "type": kind,
        "pinned": len(copies),
        "none": after is None,
        "missed": missed,
        "lost": [path for path in before if path not in pinned],
    }


def storages(batch: Any) -> list[int]:
    """Bytes that the storages of a batch take in shared memory, each once and in whole pages."""
    page = os.sysconf("SC_PAGE_SIZE")
    sizes = {}
    for _, tensor in walk_tensors(batch):
        if tensor.layout is torch.strided and tensor.numel():
            storage = tensor.untyped_storage()
            sizes[storage.data_ptr()] = -(-storage.nbytes() // page) * page
    return list(sizes.values())


def kind_of(value: Any) -> str:
    kind = type(value)
    return f"{kind.__module__}.{kind.__qualname__}"
