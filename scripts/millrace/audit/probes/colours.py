"""Where red goes: images of known colours in place of the files that a data set lists."""

from __future__ import annotations

import os
import shutil
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from millrace.audit.probes.batches import draw
from millrace.audit.probes.figures import batched, channel_axis
from millrace.audit.probes.listed import files
from millrace.audit.runner.listener import SEED, reseed
from millrace.audit.runner.probes import Seen
from millrace.audit.runner.target import Rank, Target
from millrace.audit.runner.walk import walk

SUFFIXES = (
    ".png",
    ".bmp",
    ".ppm",
    ".jpg",
    ".jpeg",
    ".webp",
    ".tif",
    ".tiff",
)
PRIMARIES = {
    "red": (200, 40, 40),
    "green": (40, 200, 40),
    "blue": (40, 40, 200),
}

Means = dict[str, list[float]]  # of the first three channels, by field or by colour


def relisted(value: Any, listed: str) -> Any:
    """Return a copy of a list, or of an entry of it, with another file in place of those like
    it."""
    if isinstance(value, (str, Path)):
        is_like = Path(value).suffix == Path(listed).suffix
        return type(value)(listed) if is_like else value
    if isinstance(value, dict):
        return {key: relisted(item, listed) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [relisted(item, listed) for item in value]
    return value


def replace(loader: Any, folder: Path) -> dict[str, Path]:
    """List a copy of one file everywhere in place of images; copies by the attribute that lists
    them."""
    copies = {}
    for path, owner in list(walk(loader, "loader", code=True)):
        for name, rows in list(getattr(owner, "__dict__", {}).items()):
            if not isinstance(rows, (list, tuple)) or not rows:
                continue
            found = next(files(rows[0], owner, SUFFIXES), None)
            if found is None:
                continue
            file, root = found
            copied = folder / f"probe{Path(file).suffix}"
            shutil.copyfile(file, copied)
            if root:
                listed = os.path.relpath(copied, root)
            else:
                listed = str(copied)
            setattr(owner, name, relisted(rows, listed))
            copies[f"{path}.{name}"] = copied
    return copies


def fill(file: Path, colour: tuple[int, ...]) -> None:
    """Give all pixels of an image one colour, with what the loader has loaded."""
    pil = sys.modules.get("PIL.Image")
    if pil is not None:
        with pil.open(file) as image:
            size = image.size
        pil.new("RGB", size, colour).save(file)
        return
    opencv = sys.modules["cv2"]
    pixels = opencv.imread(str(file))
    pixels[...] = colour[::-1]
    opencv.imwrite(str(file), pixels)


def images(batch: Any) -> Means:
    """Return the mean of the first three channels of every field that is a batch of colour
    images."""
    means = {}
    for name, tensor in batched(batch):
        axis = channel_axis(tensor.shape)
        if axis is not None and tensor.shape[axis] >= 3:
            channels = tensor.double().movedim(axis, 0).flatten(1)
            means[name] = channels[:3].mean(1).tolist()
    return means


def order(means: Means) -> str:
    """Say which colour each channel answers to: "RGB", "BGR", ..., or "grey", "unread", "mixed"."""
    answers = torch.tensor(list(means.values()), dtype=torch.float64)
    rows = answers - answers.mean(0)
    size = rows.max()
    if size < 1e-4 * answers.abs().max():
        return "unread"
    spread = rows.amax(1) - rows.amin(1)
    if (spread < 0.1 * size).all():
        return "grey"
    # Each colour has a channel that answers to it, and to the others hardly.
    second, first = rows.sort(1).values[:, 1:].unbind(1)
    tops = rows.argmax(1).tolist()
    if sorted(tops) != [0, 1, 2] or (second >= 0.3 * first).any():
        return "mixed"
    return "".join("RGB"[tops.index(channel)] for channel in range(3))


def colours(target: Target, rank: Rank) -> Seen:
    """Let the loader read red, green and blue images, and note which channel answers to which.

    `orders`: of each field, twice with other seeds. `places`: attributes that listed the files.
    """
    reseed()
    loader = target.loader()
    seen: Seen = {"images": [], "places": [], "orders": {}}
    with suppress(Exception):  # other probes say what a loader raises
        _, batch = next(draw(loader, rank, 1))
        seen["images"] = list(images(batch))
        copies = replace(loader, rank.scratch) if seen["images"] else {}
        seen["places"] = list(copies)
        files = set(copies.values())
        for seed in (SEED, SEED + 1) if files else ():
            for field, means in answers(loader, rank, files, seed).items():
                seen["orders"].setdefault(field, []).append(order(means))
    return seen


def answers(loader: Any, rank: Rank, copies: set[Path], seed: int) -> dict[str, Means]:
    """Return the means of channels by field and by the colour that all files have."""
    means: dict[str, Means] = {}
    for name, colour in PRIMARIES.items():
        for file in copies:
            fill(file, colour)
        reseed(seed)
        _, batch = next(draw(loader, rank, 1))
        for field, mean in images(batch).items():
            means.setdefault(field, {})[name] = mean
    return means
