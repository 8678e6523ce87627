"""Random resized crops and flips, drawn from (seed, epoch, record id)."""

from __future__ import annotations

import math

import numpy as np
from PIL import Image

from millrace.common import hashing

SCALE = (0.08, 1.0)  # share of the image's area
RATIO = (3 / 4, 4 / 3)  # width by height
TRIES = 10
Box = tuple[int, int, int, int]  # left, top, right, bottom


def random_crops(
    seed: int, epoch: int, ids: np.ndarray, sizes: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Boxes, int64 (records, 4): left, top, right, bottom; and which are mirrored, one in two.

    `sizes` are (width, height). A box is that of torchvision's RandomResizedCrop: the first of ten
    tries that fits, else the largest centred one of an allowed ratio. A record's are the same
    wherever it is read.
    """
    draws = _draws(seed, epoch, ids, 4 * TRIES + 1)
    of_boxes = draws[:, :-1].reshape(-1, TRIES, 4)
    of_flips = draws[:, -1]

    boxes = []
    for tries, (width, height) in zip(of_boxes.tolist(), sizes.tolist(), strict=True):
        box = _first_that_fits(tries, width, height)
        if box is None:
            box = _largest_centred(width, height)
        boxes.append(box)
    return np.array(boxes, np.int64), of_flips < 0.5


def _draws(seed: int, epoch: int, ids: np.ndarray, count: int) -> np.ndarray:
    """Numbers in [0, 1), (records, count)."""
    keys = np.array([hashing.key(seed, epoch, number) for number in range(count)])
    names = np.asarray(ids, np.uint64)
    # ^ of all pairs: (records, count)
    pairs = np.bitwise_xor.outer(names, keys)
    mixed = hashing.mix(pairs.ravel())

    # As many bits as a float64 has.
    bits = mixed >> np.uint64(11)
    return bits.reshape(pairs.shape) / 2.0**53


def _first_that_fits(tries: list[list[float]], width: int, height: int) -> Box | None:
    """The first box that lies within the image, each drawn by four numbers; None if none does."""
    for area_draw, ratio_draw, left_draw, top_draw in tries:
        box_width, box_height = _sides(area_draw, ratio_draw, width * height)
        if not 0 < box_width <= width:
            continue
        if not 0 < box_height <= height:
            continue

        across = width - box_width + 1
        down = height - box_height + 1
        left = int(left_draw * across)
        top = int(top_draw * down)
        return (
            left,
            top,
            left + box_width,
            top + box_height,
        )
    return None


def _sides(area_draw: float, ratio_draw: float, whole: int) -> tuple[int, int]:
    """Width and height of a box in an image of `whole` pixels."""
    least, most = SCALE
    share = least + (most - least) * area_draw
    area = whole * share

    narrowest = math.log(RATIO[0])
    widest = math.log(RATIO[1])
    exponent = narrowest + (widest - narrowest) * ratio_draw
    ratio = math.exp(exponent)

    width = math.sqrt(area * ratio)
    height = math.sqrt(area / ratio)
    return round(width), round(height)


def _largest_centred(width: int, height: int) -> Box:
    """The largest box of an allowed ratio in the middle of the image."""
    widest = round(height * RATIO[1])
    highest = round(width / RATIO[0])
    box_width = min(width, widest)
    box_height = min(height, highest)

    left = (width - box_width) // 2
    top = (height - box_height) // 2
    return (
        left,
        top,
        left + box_width,
        top + box_height,
    )


def crop(image: np.ndarray, box: np.ndarray, size: int, flip: bool) -> np.ndarray:
    """uint8 (size, size, 3) RGB of a box."""
    left, top, right, bottom = box.tolist()
    # Not resize(box=...), which blends pixels from outside of the box in.
    part = Image.fromarray(image[top:bottom, left:right])
    resized = part.resize((size, size), Image.Resampling.BILINEAR)
    pixels = np.asarray(resized)
    if flip:
        return pixels[:, ::-1]
    return pixels
