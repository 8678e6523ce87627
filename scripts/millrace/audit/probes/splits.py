"""Samples that two loaders share: by their files, their ids and their contents."""

from __future__ import annotations

import contextlib
import hashlib
import os
import pickle
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import chain
from typing import Any

from torch.utils.data import DataLoader

from millrace.audit.probes.colours import SUFFIXES, files
from millrace.audit.probes.figures import index_batches
from millrace.audit.runner.digest import digest, members
from millrace.audit.runner.listener import reseed
from millrace.audit.runner.probes import Seen
from millrace.audit.runner.target import Options, Rank, Target

MEDIA = (*SUFFIXES, ".wav", ".flac", ".mp3", ".ogg", ".opus", ".m4a", ".mp4")
IDS = "recording recording_id rec_id id uid utt_id key __key__ sample_id image_id"


def rich(value: Any) -> bool:
    """Say whether a field contains so much that equal contents are no chance: 64 values, or 8
    fractions."""
    raw = (
        value.tobytes() if hasattr(value, "getextrema") else value if isinstance(value, str) else ()
    )
    array = hasattr(value, "reshape") and hasattr(value, "dtype")
    flat = value.reshape(-1)[:4096].tolist() if array else raw
    fractions = {number for number in flat if isinstance(number, float) and number % 1}
    return len(fractions) >= 8 or (len(flat) >= 64 and len(set(flat)) >= 8)


def marks(sample: Any) -> dict[str, str]:
    """Return what identifies a sample: its ids, and digests of its contents."""
    parts = {"": sample, **dict(members(sample))}
    ids = {name: parts.pop(name) for name in IDS.split() if name in parts}
    # Numbers that differ tell samples apart; equal ones may be counted from 0 in each split.
    ids = {f"number {name}" if str(value).isdigit() else name: value for name, value in ids.items()}
    ids = {name: str(value) for name, value in ids.items() if isinstance(value, (str, int))}
    return ids | {
        f"content {name}".strip(): digest(value) for name, value in parts.items() if rich(value)
    }


def base(data: Any, index: Any) -> tuple[Any, Any]:
    """Return the data set behind subsets, and the index there."""
    while hasattr(data, "indices") and hasattr(data, "dataset"):
        data, index = data.dataset, data.indices[index]
    return data, index


def source(data: Any) -> str:
    """Digest what a data set holds: two that are alike have the same sample at an index; "" if
    unknown."""
    below = base(data, 0)[0]
    scope = getattr(below, "__dict__", {"": below})  # a list may be a data set
    scope = {name: value for name, value in scope.items() if "transform" not in name}
    with contextlib.suppress(Exception):
        held = pickle.dumps([type(below), scope])
        return (
            hashlib.blake2b(held).hexdigest()[:16] if below is not data or len(held) > 4096 else ""
        )
    return ""


def by_recording(loader: Any, rank: Rank, until: float) -> Seen:
    """Return what `read` does, of a loader that says which recordings its samples are of."""
    names: dict[str, str] = {}
    note: Seen = {
        "read": 0,
        "complete": True,
        "marks": {"recording": names},
        "unstable": [],
    }
    for name in loader.recordings():
        names[str(name)] = str(name)
        note["read"] += 1
        if rank.left() < until:
            note["complete"] = False
            break
    if not names:
        note["marks"] = {}
    return note


def read(loader: Any, rank: Rank, until: float) -> Seen:
    """Return {kind: {mark: sample}} of all samples that a loader draws, as far as time allows."""
    if callable(getattr(loader, "recordings", None)):
        return by_recording(loader, rank, until)
    data: Any = getattr(loader, "dataset", None)
    batches = index_batches(loader)
    note: Seen = {"read": 0, "complete": True, "marks": {}, "unstable": []}
    if batches is None:
        rows: Any = enumerate(data if isinstance(loader, DataLoader) else ())
        held, below, lists = "", data, []
    else:
        drawn: Any = batches
        if loader.batch_sampler is not None:
            drawn = dict.fromkeys(chain.from_iterable(batches))
        rows = ((index, data[index]) for index in drawn)
        held, below = source(data), base(data, 0)[0]
        lists = rows_of(below)
    for index, sample in rows:
        here, place = marks(sample), index if batches is None else base(data, index)[1]
        if note["read"] < 4 and batches is not None:
            again = marks(data[index])
            note["unstable"] += [kind for kind in here if here[kind] != again.get(kind)]
        entries = [sample, *(each[place] for each in lists)]
        found = [*here.items(), *(("file", path) for path in media(entries, below))]
        if held:
            found.append(("index", f"{held}:{place}"))
        for kind, mark in found:
            note["marks"].setdefault(kind, {}).setdefault(mark, index)
        note["read"] += 1
        if rank.left() < until:
            note["complete"] = False
            break
    return note


def media(entries: list[Any], owner: Any) -> Iterator[str]:
    """Yield the paths of the files that entries of lists name."""
    for entry in entries:
        yield from (os.path.realpath(file) for file, _ in files(entry, owner, MEDIA))


def rows_of(data: Any) -> list[Any]:
    """Return the lists and arrays of a data set that have a row for each sample."""
    held = getattr(data, "__dict__", {}).values()
    lists = [
        each for each in held if isinstance(each, (list, tuple)) or bool(getattr(each, "shape", ()))
    ]
    return [each for each in lists if len(each) == len(data)]


def splits(target: Target, options: Options, rank: Rank) -> Seen:
    """Note what the loaders of training and of evaluation share."""
    reseed(options.seed)
    val, start = target.val_loader(), rank.left()
    if val is None:
        return {}
    notes = {"val": read(val, rank, start * 0.5), "train": read(target.loader(), rank, start * 0.1)}
    theirs, ours = notes["val"].pop("marks"), notes["train"].pop("marks")
    shared = {}
    for kind in sorted(
        set(theirs) & set(ours) - {*notes["val"]["unstable"], *notes["train"]["unstable"]}
    ):
        equal = sorted(set(theirs[kind]) & set(ours[kind]))
        pairs = [
            {"mark": mark, "train": ours[kind][mark], "val": theirs[kind][mark]}
            for mark in equal[:5]
        ]
        shared[kind] = {"count": len(equal), "examples": pairs}
    if not shared.get("file", {}).get("count"):
        has_time = partial(_has_time, rank, start * 0.05)
        shared |= by_content(ours.get("file", {}), theirs.get("file", {}), has_time)
    return {**notes, "shared": shared}


def _has_time(rank: Rank, until: float) -> bool:
    return rank.left() > until


def by_content(
    ours: Mapping[str, Any], theirs: Mapping[str, Any], has_time: Callable[[], bool]
) -> Seen:
    """Return the files of two splits that are copies of each other, whatever they are called.

    {} if not all could be read in time, or if what decodes them is not installed.
    """
    if not ours or not theirs:
        return {}
    try:
        from millrace.audit.splits.compare import files_shared
    except ImportError:
        return {}
    pairs = files_shared(ours, theirs, has_time)
    if pairs is None:
        return {}
    shown = [
        {"mark": pair.how, "train": ours[pair.sample], "val": theirs[pair.held_out]}
        for pair in pairs[:5]
    ]
    count = len({pair.held_out for pair in pairs})
    return {"content of the files": {"count": count, "examples": shown}}
