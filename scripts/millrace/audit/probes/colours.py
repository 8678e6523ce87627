"""Where red goes: images of known colours in place of the files that a data set lists."""

from __future__ import annotations

import copy
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from millrace.audit.probes.values import batched, channel_axis, draw
from millrace.audit.runner import trace
from millrace.audit.runner.digest import members
from millrace.audit.runner.tap import reseed
from millrace.audit.runner.target import Options, Rank, Target
from millrace.audit.runner.walk import walk

SUFFIXES = (".png", ".bmp", ".ppm", ".jpg", ".jpeg", ".webp", ".tif", ".tiff")
PRIMARIES = {"red": (200, 40, 40), "green": (40, 200, 40), "blue": (40, 40, 200)}


def files(entry: Any, owner: Any, suffixes: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Yield (file, root) of the files that an entry of a list names; roots are the owner's
    folders."""
    values = [v for v in getattr(owner, "__dict__", {}).values() if isinstance(v, (str, Path))]
    roots = ["", *(str(value) for value in values if os.path.isdir(value))]
    for part in (entry, *dict(members(entry)).values()):
        if isinstance(part, (str, Path)) and str(part).lower().endswith(suffixes):
            yield from (
                (file, root) for root in roots if os.path.isfile(file := os.path.join(root, part))
            )


def relisted(value: Any, listed: str) -> Any:
    """Return a copy of a list, or of an entry of it, with another file in place of those like
    it."""
    if isinstance(value, (str, Path)):
        return type(value)(listed) if Path(value).suffix == Path(listed).suffix else value
    if isinstance(value, Mapping):
        return type(value)({key: relisted(item, listed) for key, item in value.items()})
    if isinstance(value, (list, tuple)):
        return getattr(value, "_make", type(value))([relisted(item, listed) for item in value])
    if hasattr(value, "__dict__") and not callable(value):
        changed = copy.copy(value)
        vars(changed).update(relisted(vars(value), listed))
        return changed
    return value


def replace(loader: Any, folder: Path) -> dict[str, tuple[str, Path]]:
    """List one file everywhere in place of images. Return {attribute: (a file it listed, the new
    file)}."""
    replaced = {}
    for path, owner in list(walk(loader, "loader", code=True)):
        for name, rows in list(getattr(owner, "__dict__", {}).items()):
            rows = (
                rows.tolist() if getattr(rows, "ndim", 0) == 1 and hasattr(rows, "tolist") else rows
            )
            entries = rows.values() if isinstance(rows, dict) else rows
            if not isinstance(rows, (dict, list, tuple)) or not entries:
                continue
            for file, root in files(next(iter(entries)), owner, SUFFIXES):
                new = folder / f"probe{Path(file).suffix}"
                setattr(
                    owner, name, relisted(rows, os.path.relpath(new, root) if root else str(new))
                )
                replaced[f"{path}.{name}"] = file, new
                break
    return replaced


def write(like: str, colour: tuple[int, ...], file: Path) -> None:
    """Write an image of one colour in the format and size of another, with what the loader has
    loaded."""
    if pil := sys.modules.get("PIL.Image"):
        with pil.open(like) as image:
            pil.new("RGB", image.size, colour).convert(
                "RGBA" if image.mode == "RGBA" else "RGB"
            ).save(file)
    else:
        pixels = sys.modules["cv2"].imread(like)
        pixels[...] = colour[::-1]
        sys.modules["cv2"].imwrite(str(file), pixels)


def images(batch: Any) -> dict[str, list[float]]:
    """Return the mean of the first three channels of every field that is a batch of colour
    images."""
    axes = {name: (tensor, channel_axis(tensor.shape)) for name, tensor in batched(batch)}
    colour = {
        name: (t, axis)
        for name, (t, axis) in axes.items()
        if axis is not None and t.shape[axis] >= 3
    }
    return {
        name: t.double().movedim(axis, 0).flatten(1).mean(1).tolist()[:3]
        for name, (t, axis) in colour.items()
    }


def order(means: dict[str, list[float]]) -> str:
    """Say which colour each channel answers to: "RGB", "BGR", ..., or "grey", "unread", "mixed"."""
    middle = [sum(column) / 3 for column in zip(*means.values(), strict=True)]
    rows = [[value - m for value, m in zip(row, middle, strict=True)] for row in means.values()]
    size, tops = max(map(max, rows)), [row.index(max(row)) for row in rows]
    if size < 1e-4 * max(abs(value) for row in means.values() for value in row):
        return "unread"
    if all(max(row) - min(row) < 0.1 * size for row in rows):
        return "grey"
    clear = len(set(tops)) == 3 and all(sorted(row)[1] < 0.3 * max(row) for row in rows)
    return "".join("RGB"[tops.index(channel)] for channel in range(3)) if clear else "mixed"


def negative_stride(value: Any) -> str:
    """Name an array in a sample that is a view with a negative stride, as img[:, :, ::-1] is."""
    for name, part in [("sample", value), *members(value)]:
        strides = getattr(part, "strides", None)
        if isinstance(strides, tuple) and any(step < 0 for step in strides):
            return f"{name} of shape {tuple(part.shape)} with strides {strides}"
    return ""


def colours(target: Target, options: Options, rank: Rank) -> dict[str, Any]:
    """Let the loader read red, green and blue images, and note which channel answers to which.

    `orders`: of each field, twice with other seeds. `negative`: an array that torch refuses, if
    any.
    """
    reseed(options.seed)
    loader = target.loader()
    note: dict[str, Any] = {
        "images": [],
        "negative": "",
        "places": [],
        "orders": {},
        "raised": None,
    }
    try:
        samples, batch = next(draw(loader, rank, 1))
        note["images"] = list(images(batch))
        note["negative"] = next(filter(None, map(negative_stride, samples)), "")
        replaced = replace(loader, rank.scratch) if note["images"] else {}
        note["places"] = list(replaced)
        for number in (options.seed, options.seed + 1) if replaced else ():
            means: dict[str, dict] = {}
            for name, colour in PRIMARIES.items():
                for like, new in replaced.values():
                    write(like, colour, new)
                reseed(number)
                for field, mean in images(next(draw(loader, rank, 1))[1]).items():
                    means.setdefault(field, {})[name] = mean
            for field, answer in means.items():
                note["orders"].setdefault(field, []).append(order(answer))
    except Exception as error:
        note["raised"] = trace.described(error)
        if "strides" in str(error) and "negative" in str(error):
            note["negative"] = str(error)
    return note
