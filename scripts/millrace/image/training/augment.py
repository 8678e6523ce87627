"""Random resized crops and flips, drawn from (seed, epoch, record id)."""

from __future__ import annotations

import math

import numpy as np
from PIL import Image

from millrace.common import hashing

SCALE = (0.08, 1.0)  # share of the image's area
RATIO = (3 / 4, 4 / 3)  # width by height
TRIES = 10


def random_crops(
    seed: int, epoch: int, ids: np.ndarray, sizes: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Boxes, int64 (records, 4): left, top, right, bottom; and which are mirrored, one in two.

    `sizes` are (width, height). A box is that of torchvision's RandomResizedCrop: the first of ten
    tries that fits, else the largest centred one of an allowed ratio. A record's are the same
    wherever it is read.
    """
    draws = _draws(seed, epoch, ids, 4 * TRIES + 1)
    of_tries = draws[:, :-1]
    of_mirror = draws[:, -1]
    float_sizes = sizes.astype(np.float64)
    width, height = np.split(float_sizes, 2, axis=1)

    tried, is_found = _first_that_fits(
        of_tries.reshape(-1, TRIES, 4),
        width,
        height,
    )
    centred = _largest_centred(width, height)
    edges = np.where(is_found, tried, centred)
    return edges.astype(np.int64), of_mirror < 0.5


def _draws(seed: int, epoch: int, ids: np.ndarray, count: int) -> np.ndarray:
    """Numbers in [0, 1), (records, count)."""
    keys = np.array([hashing.key(seed, epoch, number) for number in range(count)])
    names = np.asarray(ids, np.uint64)
    # ^ of all pairs: (records, count)
    pairs = np.bitwise_xor.outer(names, keys)
    mixed = hashing.mix(pairs.ravel())
    bits = mixed >> np.uint64(11)
    return bits.reshape(pairs.shape) / 2.0**53


def _first_that_fits(
    draws: np.ndarray, width: np.ndarray, height: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The edges of the first try of each record that lies within its image, (records, 4), and
    whether there is one, (records, 1); draws (records, tries, 4)."""
    edges, fits = _tried(draws, width, height)
    first = np.argmax(fits, axis=1)
    records = np.arange(len(first))
    is_found = np.any(fits, axis=1, keepdims=True)
    return edges[records, first], is_found


def _tried(
    draws: np.ndarray, width: np.ndarray, height: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The edges of every try, (records, tries, 4), and whether it lies within the image."""
    area_draw, ratio_draw, left_draw, top_draw = np.moveaxis(draws, 2, 0)
    box_width, box_height = _tried_sizes(area_draw, ratio_draw, width * height)
    across = width - box_width
    down = height - box_height
    is_box = (box_width > 0) & (box_height > 0)
    is_within = (across >= 0) & (down >= 0)

    left = np.floor(left_draw * (across + 1))
    top = np.floor(top_draw * (down + 1))
    edges = np.stack([left, top, left + box_width, top + box_height], axis=2)
    return edges, is_box & is_within


def _tried_sizes(
    area_draw: np.ndarray, ratio_draw: np.ndarray, whole: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Widths and heights, in pixels, of tries in images of `whole` pixels."""
    area = whole * _between(*SCALE, area_draw)
    narrowest, widest = map(math.log, RATIO)
    ratio = np.exp(_between(narrowest, widest, ratio_draw))
    box_width = np.rint(np.sqrt(area * ratio))
    box_height = np.rint(np.sqrt(area / ratio))
    return box_width, box_height


def _between(low: float, high: float, draw: np.ndarray) -> np.ndarray:
    """The numbers that draws of [0, 1) are, from low to high."""
    return low + (high - low) * draw


def _largest_centred(width: np.ndarray, height: np.ndarray) -> np.ndarray:
    """The edges of the largest box of an allowed ratio in the middle of each image."""
    widest = np.maximum(np.rint(height * RATIO[1]), 1)
    highest = np.maximum(np.rint(width / RATIO[0]), 1)
    box_width = np.minimum(width, widest)
    box_height = np.minimum(height, highest)

    left = (width - box_width) // 2
    top = (height - box_height) // 2
    right = left + box_width
    bottom = top + box_height
    return np.concatenate([left, top, right, bottom], axis=1)


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
