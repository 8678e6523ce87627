"""What the first batches contain (which fields are pictures, which look normalised), and what every
transform of the data set took and gave."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import torch

from millrace.audit.probes.batches import draw
from millrace.audit.runner.digest import attributes, is_array, walk_tensors
from millrace.audit.runner.listener import reseed
from millrace.audit.runner.probes import Seen
from millrace.audit.runner.target import Rank, Target
from millrace.audit.runner.walk import walk

FEW = 6  # batches show what values are
CHANNELS = (1, 3, 4)
SHORTEST_SIDE = 8  # pixels: what is smaller is no picture
LONGEST = 4096  # constants
COUNTED = 40_000  # values of a batch whose levels are counted
TRANSFORMS = {"Normalize", "ToTensor", "PILToTensor", "ToImage", "ToDtype"}
NAMES = ("transform", "transforms")  # of attributes


def values(target: Target, rank: Rank) -> Seen:
    """Read a few batches, and note what transforms take and give meanwhile; with a validation
    loader also all of both sets, if constants may have been fitted on them.

    `constants`: how many numbers each mean has. `normalised`: fields that look so.
    """
    reseed()
    loader = target.loader()
    start = rank.left()
    seen: Seen = {"expect": target.options.expect, "constants": constants(loader)}
    seen["chains"] = chains(loader)
    seen |= figures(loader, rank, FEW, start / 2)
    seen["normalised"] = [field["name"] for field in seen["fields"] if _is_normalised(field)]
    val = target.val_loader()
    if val is not None and seen["constants"] and seen["normalised"]:
        seen["train"] = figures(target.loader(), rank, None, start * 0.4)
        seen["val"] = figures(val, rank, None, start * 0.1)
    return seen


def _is_normalised(field: Seen) -> bool:
    farthest = max(map(abs, field["mean"]))
    return 0.5 < max(field["std"]) < 2 and farthest < 3


def constants(loader: Any) -> list[int]:
    """How many numbers each mean has that stands beside a standard deviation: of a Normalize, of a
    data set, of a scaler of scikit-learn."""
    found = []
    for _, value in walk(loader, code=True):
        held = attributes(value)
        mean = numbers(held.get("mean", held.get("mean_")))
        std = numbers(held.get("std", held.get("scale_")))
        if std and any(mean):
            found.append(len(mean))
    return found


def figures(loader: Any, rank: Rank, limit: int | None, until: float) -> Seen:
    """The figures of each field, and whether all batches were read: none is when less than `until`
    seconds are left."""
    rows: dict[str, list[Seen]] = {}
    complete = False
    with suppress(Exception):  # other probes say what a loader raises
        for _, batch in draw(loader, rank, limit):
            for name, tensor in batched(batch):
                known = rows.setdefault(name, [])
                row = measured(tensor)
                if row and (not known or len(row["max"]) == len(known[0]["max"])):
                    known.append(row)
            if rank.left() < until:
                break
        else:
            complete = True
    fields = [merged(name, known) for name, known in rows.items() if known]
    return {"complete": complete, "fields": fields}


def chains(loader: Any) -> list[list[Seen]]:
    """Watch the chains of transforms that the loader reaches."""
    watched = []
    known: set[int] = set()
    for path, value in list(walk(loader, "loader", code=True)):
        if id(value) in known:
            continue
        inner = _flat(value) or []
        classes = {type(step).__name__ for step in [value, *inner]}
        if classes & TRANSFORMS or (inner and path.endswith(NAMES)):
            known |= {id(part) for _, part in walk(value, limit=200, code=True)}
            watched.append([watch(step, path, at) for at, step in enumerate(inner or [value])])
    return watched


def _flat(value: Any) -> list | None:
    """Return the transforms that a Compose, nn.Sequential or list applies in turn, nested ones in
    line."""
    inner = getattr(value, "transforms", value)
    if not isinstance(inner, (list, tuple, torch.nn.Sequential, torch.nn.ModuleList)):
        return None
    parts = list(inner)
    if not parts or any(not callable(part) or isinstance(part, type) for part in parts):
        return None
    return [step for part in parts for step in _flat(part) or [part]]


def watch(step: Any, path: str, at: int) -> Seen:
    """Let a transform note what it takes and gives; its class keeps its name, and it stays an
    instance."""
    kind = type(step)
    seen: Seen = {
        "path": path,
        "at": at,
        "name": getattr(step, "__name__", kind.__name__),
        "mean": numbers(getattr(step, "mean", None)),
    }

    def call(self: Any, *args: Any, **named: Any) -> Any:
        taken = _described(args or named)
        _widen(seen.setdefault("taken", taken), taken)
        try:
            result = kind.__call__(self, *args, **named)
        except Exception as error:
            seen.update({"raised": type(error).__name__, "taken": taken})
            raise
        given = _described(result)
        _widen(seen.setdefault("gave", given), given)
        return result

    # Functions, and classes with slots or a metaclass, are not watched: constants are read.
    methods = {"__call__": call, "__module__": kind.__module__}
    with suppress(Exception):
        step.__class__ = type(kind.__name__, (kind,), methods)
    return seen


def _described(value: Any) -> Seen:
    """What a transform took or gave: type and range; of several values the image."""
    while isinstance(value, (tuple, list, Mapping)) and value:
        if isinstance(value, Mapping):
            value = value.get("image", next(iter(value.values())))
        else:
            value = value[0]
    seen: Seen = {"type": type(value).__name__, "is_tensor": isinstance(value, torch.Tensor)}
    if is_array(value):
        with suppress(Exception):  # empty, or complex
            seen |= {"min": float(value.min()), "max": float(value.max())}
    return seen


def _widen(seen: Seen, other: Seen) -> None:
    """Let the range of a value also span that of another one."""
    if "min" in seen and "min" in other:
        seen["min"] = min(seen["min"], other["min"])
        seen["max"] = max(seen["max"], other["max"])


def numbers(value: Any) -> list[float]:
    """Return constants as a list, of a number, a list, a tensor or an array; else nothing."""
    if hasattr(value, "dtype") and hasattr(value, "flatten"):
        value = value.flatten().tolist()
    if not isinstance(value, (list, tuple)):
        value = [value]
    if len(value) > LONGEST or not all(isinstance(number, (int, float)) for number in value):
        return []
    return list(map(float, value))


def channel_axis(shape: torch.Size) -> int | None:
    """Return the axis of the channels of images (B, C, H, W) or (B, H, W, C) and of clips, else
    None."""
    if len(shape) not in (4, 5):
        return None
    last = len(shape) - 1
    for axis in (*range(1, last - 1), last):
        if shape[axis] in CHANNELS:
            sides = shape[-3:-1] if axis == last else shape[-2:]
            return axis if min(sides) >= SHORTEST_SIDE else None
    return None


def batched(batch: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors of a batch by path; an image of a list is a batch of one, under the list's
    name."""
    are_rows = False
    if isinstance(batch, (list, tuple)):
        are_rows = all(isinstance(row, Mapping) for row in batch)
    for path, tensor in walk_tensors(batch):
        name, _, place = path.rpartition(".")
        if are_rows:
            place, _, name = path.partition(".")
        if tensor.dim() == 3 and name and place.isdigit():
            yield name, tensor[None]
        else:
            yield path, tensor


def measured(tensor: torch.Tensor) -> Seen:
    """Return the figures of images, by channel, or of a float field, by column; nothing for
    others."""
    axis = channel_axis(tensor.shape)
    if not tensor.numel() or tensor.is_complex():
        return {}
    if axis is None and not tensor.is_floating_point():
        return {}
    doubles = tensor.detach().to("cpu", torch.float64)
    values = doubles.nan_to_num(0.0, 0.0, 0.0)
    if axis is not None:
        values = values.movedim(axis, 0).flatten(1)
    elif values.dim() == 2:
        values = values.movedim(1, 0)  # a channel for each column of a table
    else:
        values = values.flatten()[None]
    few = values[:, : COUNTED // len(values)]
    return {
        "image": axis is not None,
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "values": values.shape[1],
        "sum": values.sum(1),
        "squares": values.square().sum(1),
        "min": values.amin(1),
        "max": values.amax(1),
        "whole": bool((few == few.round()).all()),
        "distinct": few.unique().numel(),
    }


def merged(name: str, rows: list[Seen]) -> Seen:
    """Return the figures of a field in all batches."""
    count = sum(row["values"] for row in rows)
    mean = sum(row["sum"] for row in rows) / count
    variance = sum(row["squares"] for row in rows) / count - mean.square()
    return {
        "name": name,
        "image": rows[0]["image"],
        "dtype": rows[0]["dtype"],
        "values": count,
        "mean": mean.tolist(),
        "std": variance.clamp(min=0).sqrt().tolist(),
        "min": torch.stack([row["min"] for row in rows]).amin(0).tolist(),
        "max": torch.stack([row["max"] for row in rows]).amax(0).tolist(),
        "whole": all(row["whole"] for row in rows),
        "distinct": max(row["distinct"] for row in rows),
    }
