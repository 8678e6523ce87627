"""Where red goes: images of known colours in place of the files that a data set lists."""

from __future__ import annotations

import copy
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from millrace.audit.probes.figures import batched, channel_axis, draw
from millrace.audit.runner import trace
from millrace.audit.runner.digest import members
from millrace.audit.runner.listener import reseed
from millrace.audit.runner.probes import Seen
from millrace.audit.runner.target import Options, Rank, Target
from millrace.audit.runner.walk import walk

SUFFIXES = (".png", ".bmp", ".ppm", ".jpg", ".jpeg", ".webp", ".tif", ".tiff")
PRIMARIES = {"red": (200, 40, 40), "green": (40, 200, 40), "blue": (40, 40, 200)}


def files(entry: Any, owner: Any, suffixes: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Yield (file, root) of the files that an entry of a list names; roots are the owner's
    folders."""
    roots = [""]
    for value in getattr(owner, "__dict__", {}).values():
        if isinstance(value, (str, Path)) and os.path.isdir(value):
            roots.append(str(value))
    for _, part in [("", entry), *members(entry)]:
        if not isinstance(part, (str, Path)) or not str(part).lower().endswith(suffixes):
            continue
        for root in roots:
            file = os.path.join(root, part)
            if os.path.isfile(file):
                yield file, root


def relisted(value: Any, listed: str) -> Any:
    """Return a copy of a list, or of an entry of it, with another file in place of those like
    it."""
    kind = type(value)
    if isinstance(value, (str, Path)):
        is_like = Path(value).suffix == Path(listed).suffix
        return kind(listed) if is_like else value
    if isinstance(value, Mapping):
        return kind({key: relisted(item, listed) for key, item in value.items()})
    if isinstance(value, (list, tuple)):
        make = getattr(value, "_make", kind)  # of a named tuple
        return make([relisted(item, listed) for item in value])
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
        for name, value in list(getattr(owner, "__dict__", {}).items()):
            is_column = getattr(value, "ndim", 0) == 1 and hasattr(value, "tolist")
            rows = value.tolist() if is_column else value
            if not isinstance(rows, (dict, list, tuple)) or not rows:
                continue
            entry = next(iter(rows.values() if isinstance(rows, dict) else rows))
            for file, root in files(entry, owner, SUFFIXES):
                new = folder / f"probe{Path(file).suffix}"
                listed = os.path.relpath(new, root) if root else str(new)
                setattr(owner, name, relisted(rows, listed))
                replaced[f"{path}.{name}"] = file, new
                break
    return replaced


def write(like: str, colour: tuple[int, ...], file: Path) -> None:
    """Write an image of one colour in the format and size of another, with what the loader has
    loaded."""
    pil = sys.modules.get("PIL.Image")
    if pil is None:
        opencv = sys.modules["cv2"]
        pixels = opencv.imread(like)
        pixels[...] = colour[::-1]
        opencv.imwrite(str(file), pixels)
        return
    with pil.open(like) as image:
        mode = "RGBA" if image.mode == "RGBA" else "RGB"
        pil.new("RGB", image.size, colour).convert(mode).save(file)


def images(batch: Any) -> dict[str, list[float]]:
    """Return the mean of the first three channels of every field that is a batch of colour
    images."""
    means = {}
    for name, tensor in batched(batch):
        axis = channel_axis(tensor.shape)
        if axis is not None and tensor.shape[axis] >= 3:
            channels = tensor.double().movedim(axis, 0).flatten(1)
            means[name] = channels.mean(1).tolist()[:3]
    return means


def order(means: dict[str, list[float]]) -> str:
    """Say which colour each channel answers to: "RGB", "BGR", ..., or "grey", "unread", "mixed"."""
    columns = zip(*means.values(), strict=True)
    middle = [sum(column) / 3 for column in columns]
    rows = []
    for row in means.values():
        rows.append([value - m for value, m in zip(row, middle, strict=True)])
    size = max(map(max, rows))
    largest = max(abs(value) for row in means.values() for value in row)
    if size < 1e-4 * largest:
        return "unread"
    if all(max(row) - min(row) < 0.1 * size for row in rows):
        return "grey"
    # Each colour has a channel that answers to it, and to the others hardly.
    tops = [row.index(max(row)) for row in rows]
    if sorted(tops) != [0, 1, 2] or any(sorted(row)[1] >= 0.3 * max(row) for row in rows):
        return "mixed"
    return "".join("RGB"[tops.index(channel)] for channel in range(3))


def negative_stride(value: Any) -> str:
    """Name an array in a sample that is a view with a negative stride, as img[:, :, ::-1] is."""
    for name, part in [("sample", value), *members(value)]:
        strides = getattr(part, "strides", None)
        if isinstance(strides, tuple) and any(step < 0 for step in strides):
            return f"{name} of shape {tuple(part.shape)} with strides {strides}"
    return ""


def colours(target: Target, options: Options, rank: Rank) -> Seen:
    """Let the loader read red, green and blue images, and note which channel answers to which.

    `orders`: of each field, twice with other seeds. `negative`: an array that torch refuses, if
    any.
    """
    reseed(options.seed)
    loader = target.loader()
    note: Seen = {
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
        for seed in (options.seed, options.seed + 1) if replaced else ():
            for field, means in answers(loader, rank, replaced, seed).items():
                note["orders"].setdefault(field, []).append(order(means))
    except Exception as error:
        note["raised"] = trace.described(error)
        if "strides" in str(error) and "negative" in str(error):
            note["negative"] = str(error)
    return note


def answers(
    loader: Any, rank: Rank, replaced: dict[str, tuple[str, Path]], seed: int
) -> dict[str, dict[str, list[float]]]:
    """Return the means of channels by field and by the colour that all files have."""
    means: dict[str, dict[str, list[float]]] = {}
    for name, colour in PRIMARIES.items():
        for like, new in replaced.values():
            write(like, colour, new)
        reseed(seed)
        _, batch = next(draw(loader, rank, 1))
        for field, mean in images(batch).items():
            means.setdefault(field, {})[name] = mean
    return means
