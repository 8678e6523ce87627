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
    boxes = []
    for of_record, (width, height) in zip(draws, sizes.tolist(), strict=True):
        tries = of_record[:-1].reshape(TRIES, 4)
        box = _first_that_fits(tries.tolist(), width, height)
        boxes.append(box or _largest_centred(width, height))
    return np.array(boxes, np.int64), draws[:, -1] < 0.5


def _draws(seed: int, epoch: int, ids: np.ndarray, count: int) -> np.ndarray:
    """Numbers in [0, 1), (records, count)."""
    keys = np.array([hashing.key(seed, epoch, number) for number in range(count)])
    names = np.asarray(ids, np.uint64)
    # ^ of all pairs: (records, count)
    pairs = np.bitwise_xor.outer(names, keys)
    mixed = hashing.mix(pairs.ravel())
    bits = mixed >> np.uint64(11)
    return bits.reshape(pairs.shape) / 2.0**53


def _first_that_fits(tries: list[list[float]], width: int, height: int) -> Box | None:
    """The first box that lies within the image, each drawn by four numbers; None if none does."""
    narrowest, widest = map(math.log, RATIO)
    for area_draw, ratio_draw, left_draw, top_draw in tries:
        share = _between(*SCALE, area_draw)
        area = width * height * share
        ratio = math.exp(_between(narrowest, widest, ratio_draw))
        box_width = round(math.sqrt(area * ratio))
        box_height = round(math.sqrt(area / ratio))
        across = width - box_width
        down = height - box_height
        is_box = box_width > 0 and box_height > 0
        if is_box and across >= 0 and down >= 0:
            left = int(left_draw * (across + 1))
            top = int(top_draw * (down + 1))
            return left, top, left + box_width, top + box_height
    return None


def _between(low: float, high: float, draw: float) -> float:
    """The number that a draw of [0, 1) is, from low to high."""
    return low + (high - low) * draw


def _largest_centred(width: int, height: int) -> Box:
    """The largest box of an allowed ratio in the middle of the image."""
    widest = max(round(height * RATIO[1]), 1)
    highest = max(round(width / RATIO[0]), 1)
    box_width = min(width, widest)
    box_height = min(height, highest)

    left = (width - box_width) // 2
    top = (height - box_height) // 2
    return left, top, left + box_width, top + box_height


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
