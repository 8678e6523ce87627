"""Where red goes: images of known colours in place of those that PIL and OpenCV read."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch

from millrace.audit.probes.batches import draw
from millrace.audit.probes.figures import batched, channel_axis, numbers
from millrace.audit.runner.digest import attributes
from millrace.audit.runner.listener import SEED, reseed
from millrace.audit.runner.probes import Seen
from millrace.audit.runner.target import Rank, Target
from millrace.audit.runner.walk import walk

PRIMARIES = {
    "red": (200, 40, 40),
    "green": (40, 200, 40),
    "blue": (40, 40, 200),
}
IN_COLOUR = 1  # of OpenCV's flags: blue, green, red

Means = dict[str, list[float]]  # of the first three channels, by field or by colour


class Painted:
    """Images of one colour, in place of those that PIL.Image.open and cv2.imread read from now on
    in this process."""

    def __init__(self) -> None:
        self.colour = PRIMARIES["red"]
        self._replace("PIL.Image", "open", self._by_pil)
        self._replace("cv2", "imread", self._by_opencv)

    def _replace(self, module: str, name: str, painted: Callable) -> None:
        library = sys.modules.get(module)
        if library is None:
            return
        read = getattr(library, name)

        def called(file: Any, *flags: Any, **named: Any) -> Any:
            return painted(library, read(file, *flags, **named), {*flags, *named.values()})

        setattr(library, name, called)

    def _by_pil(self, library: Any, image: Any, _: set[Any]) -> Any:
        # Of one band are masks, whose values are classes; one with a palette may be a mask too.
        if len(image.getbands()) < 3:
            return image
        return library.new("RGB", image.size, self.colour)

    def _by_opencv(self, _: Any, pixels: Any, flags: set[Any]) -> Any:
        if flags <= {IN_COLOUR}:
            pixels[...] = self.colour[::-1]
        return pixels


def colours(target: Target, rank: Rank) -> Seen:
    """Let the loader read red, green and blue images, twice with other seeds, and note which
    channel answers to which.

    `means`: those of three channels that the loader holds, by their places.
    """
    reseed()
    loader = target.loader()
    seen: Seen = {"images": [], "orders": [], "means": _means(loader)}
    with suppress(Exception):  # other probes say what a loader raises
        _, batch = next(draw(loader, rank, 1))
        seen["images"] = list(_images(batch))
        if not seen["images"]:
            return seen
        painted = Painted()
        for seed in (SEED, SEED + 1):
            answers = _answers(loader, rank, painted, seed)
            seen["orders"] += map(order, answers.values())
    return seen


def _means(loader: Any) -> Means:
    means = {}
    for path, value in walk(loader, "loader", code=True):
        mean = numbers(attributes(value).get("mean"))
        if len(mean) == 3:
            means[path] = mean
    return means


def _images(batch: Any) -> Means:
    """Return the mean of the first three channels of every field that is a batch of colour
    images."""
    means = {}
    for name, tensor in batched(batch):
        axis = channel_axis(tensor.shape)
        if axis is not None and tensor.shape[axis] >= 3:
            channels = tensor.double().movedim(axis, 0).flatten(1)
            means[name] = channels[:3].mean(1).tolist()
    return means


def _answers(loader: Any, rank: Rank, painted: Painted, seed: int) -> dict[str, Means]:
    """Return the means of channels by field and by the colour that all images have."""
    means: dict[str, Means] = {}
    for name, colour in PRIMARIES.items():
        painted.colour = colour
        reseed(seed)
        _, batch = next(draw(loader, rank, 1))
        for field, mean in _images(batch).items():
            means.setdefault(field, {})[name] = mean
    return means


def order(means: Means) -> str:
    """Say which colour each channel answers to: "RGB", "BGR", ..., or "" if they are mixed, grey or
    not read."""
    answers = torch.tensor(list(means.values()), dtype=torch.float64)
    rows = answers - answers.mean(0)
    # Each colour has a channel that answers to it, and to the others hardly.
    second, first = rows.sort(1).values[:, 1:].unbind(1)
    tops = rows.argmax(1).tolist()
    is_read = first.min() > 1e-4 * answers.abs().max()
    if not is_read or sorted(tops) != [0, 1, 2] or (second >= 0.3 * first).any():
        return ""
    return "".join("RGB"[tops.index(channel)] for channel in range(3))
