"""Samples that two loaders share: by their files, their ids and their contents."""

from __future__ import annotations

import hashlib
import io
import os
import pickle
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import chain
from typing import Any

import torch
from torch.utils.data import DataLoader

from millrace.audit.probes.batches import index_batches
from millrace.audit.probes.listed import files
from millrace.audit.runner.digest import digest, is_plain, members, tensor_bytes
from millrace.audit.runner.listener import reseed
from millrace.audit.runner.probes import Seen
from millrace.audit.runner.target import Rank, Target
from millrace.audit.splits.samples import MEDIA

IDS = (
    "recording",
    "recording_id",
    "rec_id",
    "id",
    "uid",
    "utt_id",
    "key",
    "__key__",
    "sample_id",
    "image_id",
)
MOST_VALUES = 4096  # of a field
LARGE = 4096  # bytes of a data set that is no other by chance
TRIED_TWICE = 4  # samples

Mark = tuple[str, str]  # a kind, and what identifies a sample by it


def rich(value: Any) -> bool:
    """Say whether a field contains so much that equal contents are no chance: 64 values, or 8
    fractions."""
    flat: Any = value if isinstance(value, str) else ()
    if hasattr(value, "getextrema"):
        flat = value.tobytes()
    elif hasattr(value, "reshape") and hasattr(value, "dtype"):
        flat = value.reshape(-1)[:MOST_VALUES].tolist()
    fractions = {number for number in flat if isinstance(number, float) and number % 1}
    if len(fractions) >= 8:
        return True
    return len(flat) >= 64 and len(set(flat)) >= 8


def marks(sample: Any) -> dict[str, str]:
    """Return what identifies a sample: its ids, and digests of its contents."""
    found = {}
    for name, part in {"": sample, **dict(members(sample))}.items():
        if name not in IDS:
            if rich(part):
                found[f"content {name}".strip()] = digest(part)
        elif isinstance(part, (str, int)):
            # Numbers that differ tell samples apart; equal ones may be counted from 0 twice.
            kind = f"number {name}" if str(part).isdigit() else name
            found[kind] = str(part)
    return found


def base(data: Any, index: Any) -> tuple[Any, Any]:
    """Return the data set behind subsets, and the index there."""
    while hasattr(data, "indices") and hasattr(data, "dataset"):
        data, index = data.dataset, data.indices[index]
    return data, index


class _ByContent(pickle.Pickler):
    """Writes tensors as their values: torch adds the address of each, so that no two are equal."""

    def reducer_override(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or not is_plain(value):
            return NotImplemented
        described = f"{value.dtype} {tuple(value.shape)} ".encode()
        return bytes, (described + tensor_bytes(value),)


def source(data: Any) -> str:
    """Digest what a data set holds: two that are alike have the same sample at an index; "" if
    unknown."""
    below = base(data, 0)[0]
    scope = getattr(below, "__dict__", {"": below})  # a list may be a data set
    scope = {name: value for name, value in scope.items() if "transform" not in name}
    with suppress(Exception):
        file = io.BytesIO()
        _ByContent(file).dump([type(below), scope])
        held = file.getvalue()
        if below is not data or len(held) > LARGE:
            return hashlib.blake2b(held).hexdigest()[:16]
    return ""


def read(loader: Any, rank: Rank, until: float) -> Seen:
    """Return {kind: {mark: sample}} of all samples that a loader draws, as far as time allows."""
    seen: Seen = {
        "read": 0,
        "complete": True,
        "marks": {},
        "unstable": [],
    }
    for index, found in _marked(loader, seen["unstable"]):
        for kind, mark in found:
            seen["marks"].setdefault(kind, {}).setdefault(mark, index)
        seen["read"] += 1
        if rank.left() < until:
            seen["complete"] = False
            break
    return seen


def _marked(loader: Any, unstable: list[str]) -> Iterator[tuple[Any, list[Mark]]]:
    """Yield the index and the marks of each sample; `unstable` gets the kinds that differ when a
    sample is read again."""
    if callable(getattr(loader, "recordings", None)):
        for name in map(str, loader.recordings()):
            yield name, [("recording", name)]
        return
    data: Any = getattr(loader, "dataset", None)
    batches = index_batches(loader)
    if batches is None:
        for number, sample in enumerate(data if isinstance(loader, DataLoader) else ()):
            yield number, [*marks(sample).items(), *media([sample], data)]
        return

    is_batched = loader.batch_sampler is not None
    indices: Any = batches
    if is_batched:
        indices = dict.fromkeys(chain.from_iterable(batches))
    held = source(data)
    below = base(data, 0)[0]
    lists = rows_of(below)
    for number, index in enumerate(indices):
        sample = data[index]
        here = marks(sample)
        if number < TRIED_TWICE:
            again = marks(data[index])
            unstable += [kind for kind in here if here[kind] != again.get(kind)]
        place = base(data, index)[1]
        entries = [sample, *(rows[place] for rows in lists)]
        found = [*here.items(), *media(entries, below)]
        if held:
            found.append(("index", f"{held}:{place}"))
        yield index, found


def media(entries: list[Any], owner: Any) -> Iterator[Mark]:
    """Yield the paths of the files that entries of lists name."""
    for entry in entries:
        for file, _ in files(entry, owner, MEDIA):
            yield "file", os.path.realpath(file)


def rows_of(data: Any) -> list[Any]:
    """Return the lists and arrays of a data set that have a row for each sample."""
    lists = []
    for value in getattr(data, "__dict__", {}).values():
        is_list = isinstance(value, (list, tuple)) or bool(getattr(value, "shape", ()))
        if is_list and len(value) == len(data):
            lists.append(value)
    return lists


def splits(target: Target, rank: Rank) -> Seen:
    """Note what the loaders of training and of evaluation share."""
    reseed()
    loader = target.val_loader()
    start = rank.left()
    if loader is None:
        return {}
    val = read(loader, rank, start * 0.5)
    train = read(target.loader(), rank, start * 0.1)
    theirs = val.pop("marks")
    ours = train.pop("marks")
    unstable = {*val["unstable"], *train["unstable"]}
    if _sources(theirs).isdisjoint(_sources(ours)):
        unstable.add("index")  # of two data sets, which may hold a sample at any index
    shared = {}
    for kind in sorted((theirs.keys() & ours) - unstable):
        equal = sorted(theirs[kind].keys() & ours[kind])
        shared[kind] = _shown([(mark, ours[kind][mark], theirs[kind][mark]) for mark in equal])
    if not shared.get("file", {}).get("count"):
        shared |= by_content(rank, start * 0.05, ours.get("file", {}), theirs.get("file", {}))
    return {"train": train, "val": val, "shared": shared}


def _sources(marks: Mapping[str, Mapping[str, Any]]) -> set[str]:
    """The data sets whose indices are known."""
    return {mark.partition(":")[0] for mark in marks.get("index", {})}


def _has_time(rank: Rank, until: float) -> bool:
    return rank.left() > until


def by_content(
    rank: Rank, until: float, ours: Mapping[str, Any], theirs: Mapping[str, Any]
) -> Seen:
    """Return the files of two splits that are copies of each other, whatever they are called.

    {} if not all could be read in time, or if what decodes them is not installed.
    """
    if not ours or not theirs:
        return {}

    def in_time(paths: Iterable[str]) -> Iterator[str]:
        for path in paths:
            yield path
            if not _has_time(rank, until):
                raise TimeoutError

    try:
        from millrace.audit.splits.compare import files_shared

        pairs = files_shared(in_time(ours), in_time(theirs))
    except (ImportError, OSError):  # the time was over; or soundfile is there without its library
        return {}
    first = {pair.held_out: pair for pair in reversed(pairs)}
    equal = [(pair.how, ours[pair.sample], theirs[held]) for held, pair in sorted(first.items())]
    return {"content of the files": _shown(equal)}


def _shown(equal: list[tuple[str, Any, Any]]) -> Seen:
    """How many samples are in both, and a few: a mark, and the sample of each split."""
    names = ("mark", "train", "val")
    examples = [dict(zip(names, example, strict=True)) for example in equal[:5]]
    return {"count": len(equal), "examples": examples}
