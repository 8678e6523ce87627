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
    width = sizes[:, :1].astype(np.float64)
    height = sizes[:, 1:].astype(np.float64)
    tried, is_found = _first_that_fits(draws[:, :-1].reshape(-1, TRIES, 4), width, height)
    centred = _largest_centred(width, height)

    edges = np.where(is_found, tried, centred)
    is_mirrored = draws[:, -1] < 0.5
    return edges.astype(np.int64), is_mirrored


def _draws(seed: int, epoch: int, ids: np.ndarray, count: int) -> np.ndarray:
    """Numbers in [0, 1), (records, count)."""
    keys = np.array([hashing.key(seed, epoch, number) for number in range(count)])
    mixed = hashing.mix((np.asarray(ids, dtype=np.uint64)[:, None] ^ keys).ravel())
    return (mixed.reshape(len(ids), count) >> np.uint64(11)) / 2.0**53


def _first_that_fits(
    draws: np.ndarray, width: np.ndarray, height: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The edges of the first try of each record that lies within its image, (records, 4), and
    whether there is one, (records, 1); draws (records, tries, 4)."""
    area_draw, ratio_draw, left_draw, top_draw = np.moveaxis(draws, 2, 0)
    share = SCALE[0] + (SCALE[1] - SCALE[0]) * area_draw
    area = width * height * share
    low, high = math.log(RATIO[0]), math.log(RATIO[1])
    ratio = np.exp(low + (high - low) * ratio_draw)
    box_width = np.rint(np.sqrt(area * ratio))
    box_height = np.rint(np.sqrt(area / ratio))

    fits_across = (box_width > 0) & (box_width <= width)
    fits_down = (box_height > 0) & (box_height <= height)
    fits = fits_across & fits_down
    left = np.floor(left_draw * (width - box_width + 1))
    top = np.floor(top_draw * (height - box_height + 1))
    edges = np.stack([left, top, left + box_width, top + box_height], axis=2)

    first = np.argmax(fits, axis=1)
    return edges[np.arange(len(first)), first], fits.any(axis=1)[:, None]


def _largest_centred(width: np.ndarray, height: np.ndarray) -> np.ndarray:
    """The edges of the largest box of an allowed ratio in the middle of each image."""
    widest = np.maximum(np.rint(height * RATIO[1]), 1)
    highest = np.maximum(np.rint(width / RATIO[0]), 1)
    box_width = np.minimum(width, widest)
    box_height = np.minimum(height, highest)
    left = (width - box_width) // 2
    top = (height - box_height) // 2
    return np.concatenate([left, top, left + box_width, top + box_height], axis=1)


def crop(image: np.ndarray, box: np.ndarray, size: int, flip: bool) -> np.ndarray:
    """uint8 (size, size, 3) RGB of a box."""
    left, top, right, bottom = box.tolist()
    # Not resize(box=...), which blends pixels from outside of the box in.
    part = Image.fromarray(image[top:bottom, left:right])
    pixels = np.asarray(part.resize((size, size), Image.Resampling.BILINEAR))
    return pixels[:, ::-1] if flip else pixels
