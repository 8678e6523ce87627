"""Samples that two loaders share: by their recordings, files, ids, and indices in one data set."""

from __future__ import annotations

import hashlib
import io
import os
import pickle
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import chain
from typing import Any

import torch
from torch.utils.data import DataLoader

from millrace.audit.probes.batches import index_batches
from millrace.audit.probes.listed import media
from millrace.audit.runner.digest import is_plain, members, tensor_bytes
from millrace.audit.runner.listener import reseed
from millrace.audit.runner.probes import Seen
from millrace.audit.runner.target import Rank, Target

IDS = ("recording", "recording_id", "rec_id", "id", "uid", "utt_id", "key", "__key__")

_LARGE = 4096  # bytes of a data set that is no other by chance

Mark = tuple[str, str]  # a kind, and what identifies a sample by it


def splits(target: Target, rank: Rank) -> Seen:
    """Note what the loaders of training and of evaluation share."""
    reseed()
    loader = target.val_loader()
    start = rank.left()
    if loader is None:
        return {}
    val = _read(loader, rank, start * 0.5)
    train = _read(target.loader(), rank, start * 0.1)
    theirs = val.pop("marks")
    ours = train.pop("marks")
    if _sources(theirs).isdisjoint(_sources(ours)):
        theirs.pop("index", None)  # of two data sets, which may hold a sample at any index
    shared = {}
    for kind in sorted(theirs.keys() & ours):
        equal = sorted(theirs[kind].keys() & ours[kind])
        examples = [
            {"mark": mark, "train": ours[kind][mark], "val": theirs[kind][mark]}
            for mark in equal[:5]
        ]
        shared[kind] = {"count": len(equal), "examples": examples}
    return {"train": train, "val": val, "shared": shared}


def _sources(marks: Mapping[str, Mapping[str, Any]]) -> set[str]:
    """The data sets whose indices are known."""
    return {mark.partition(":")[0] for mark in marks.get("index", {})}


def _read(loader: Any, rank: Rank, until: float) -> Seen:
    """Return {kind: {mark: sample}} of all samples that a loader draws, as far as time allows."""
    marks: dict[str, dict[str, Any]] = {}
    seen: Seen = {"read": 0, "complete": True, "marks": marks}
    for sample, of_sample in _marked(loader):
        for kind, mark in of_sample:
            marks.setdefault(kind, {}).setdefault(mark, sample)
        seen["read"] += 1
        if rank.left() < until:
            seen["complete"] = False
            break
    return seen


def _marked(loader: Any) -> Iterator[tuple[Any, list[Mark]]]:
    """Yield the name and the marks of each sample."""
    if callable(getattr(loader, "recordings", None)):
        for name in map(str, loader.recordings()):
            yield name, [("recording", name)]
        return
    data: Any = getattr(loader, "dataset", None)
    batches = index_batches(loader)
    if batches is None:
        for number, sample in enumerate(data if isinstance(loader, DataLoader) else ()):
            yield number, [*_ids(sample), *_media([sample], data)]
        return

    indices: Any = batches
    if loader.batch_sampler is not None:
        indices = dict.fromkeys(chain.from_iterable(batches))
    below, _ = _behind(data, None)
    lists = _rows_of(below)
    source = _source(data)
    for index in indices:
        sample = data[index]
        _, place = _behind(data, index)
        entries = [sample, *(rows[place] for rows in lists)]
        marks = [*_ids(sample), *_media(entries, below)]
        if source:
            marks.append(("index", f"{source}:{place}"))
        yield index, marks


class _ByContent(pickle.Pickler):
    """Writes tensors as their values: torch adds the address of each, so that no two are equal."""

    def reducer_override(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or not is_plain(value):
            return NotImplemented
        described = f"{value.dtype} {tuple(value.shape)} ".encode()
        return bytes, (described + tensor_bytes(value),)


def _source(data: Any) -> str:
    """A digest of what a data set holds: two that are alike have the same sample at an index. ""
    for one that cannot be pickled, or is so small that it may be another by chance."""
    below, _ = _behind(data, None)
    held = getattr(below, "__dict__", {"": below})  # a list may be a data set
    plain = {name: value for name, value in held.items() if "transform" not in name}
    with suppress(Exception):
        file = io.BytesIO()
        _ByContent(file).dump([type(below), plain])
        raw = file.getvalue()
        if below is not data or len(raw) > _LARGE:
            return hashlib.blake2b(raw).hexdigest()[:16]
    return ""


def _ids(sample: Any) -> Iterator[Mark]:
    """Yield the ids of a sample that are no numbers, which may be counted from 0 twice."""
    for name, part in members(sample):
        if name in IDS and isinstance(part, str) and not part.isdigit():
            yield name, part


def _behind(data: Any, index: Any) -> tuple[Any, Any]:
    """Return the data set behind subsets, and the index there."""
    while hasattr(data, "indices") and hasattr(data, "dataset"):
        if index is not None:
            index = data.indices[index]
        data = data.dataset
    return data, index


def _rows_of(data: Any) -> list[Any]:
    """Return the lists and arrays of a data set that have a row for each sample."""
    lists = []
    for value in getattr(data, "__dict__", {}).values():
        is_list = isinstance(value, (list, tuple)) or bool(getattr(value, "shape", ()))
        if is_list and len(value) == len(data):
            lists.append(value)
    return lists


def _media(entries: list[Any], owner: Any) -> Iterator[Mark]:
    """Yield the paths of the files that entries of lists name."""
    for entry in entries:
        for file in media(entry, owner):
            yield "file", os.path.realpath(file)
