"""Random resized crops and flips, drawn from (seed, epoch, record id)."""

from __future__ import annotations

import numpy as np
from PIL import Image

from millrace.common import hashing

SCALE, RATIO, TRIES = (0.08, 1.0), (3 / 4, 4 / 3), 10


def random_crops(
    seed: int, epoch: int, ids: np.ndarray, sizes: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Boxes, int64 (records, 4): left, top, right, bottom; and which are mirrored, one in two.

    `sizes` are (width, height). A box is that of torchvision's RandomResizedCrop: the first of ten
    tries that fits, else the largest centred one of an allowed ratio. A record's are the same
    wherever it is read.
    """
    keys = np.array([hashing.key(seed, epoch, number) for number in range(4 * TRIES + 1)])
    hashes = hashing.mix((np.asarray(ids, dtype=np.uint64)[:, None] ^ keys).ravel())
    drawn = (hashes.reshape(len(ids), -1) >> np.uint64(11)) / 2.0**53  # in [0, 1)
    width, height = sizes[:, :1].astype(np.float64), sizes[:, 1:].astype(np.float64)
    areas, ratios, lefts, tops = np.moveaxis(drawn[:, :-1].reshape(-1, TRIES, 4), 2, 0)
    area = width * height * (SCALE[0] + (SCALE[1] - SCALE[0]) * areas)
    ratio = np.exp(np.log(RATIO[0]) + (np.log(RATIO[1]) - np.log(RATIO[0])) * ratios)
    wide, high = np.rint(np.sqrt(area * ratio)), np.rint(np.sqrt(area / ratio))
    fits = (wide > 0) & (wide <= width) & (high > 0) & (high <= height)
    first = np.argmax(fits, axis=1)[:, None]
    wide, high, left, top = (
        np.take_along_axis(part, first, 1) for part in (wide, high, lefts, tops)
    )
    left, top = np.floor(left * (width - wide + 1)), np.floor(top * (height - high + 1))

    none = ~fits.any(axis=1)[:, None]
    wide = np.where(none, np.minimum(width, np.maximum(np.rint(height * RATIO[1]), 1)), wide)
    high = np.where(none, np.minimum(height, np.maximum(np.rint(width / RATIO[0]), 1)), high)
    left, top = np.where(none, (width - wide) // 2, left), np.where(none, (height - high) // 2, top)
    boxes = np.concatenate([left, top, left + wide, top + high], axis=1).astype(np.int64)
    return boxes, drawn[:, -1] < 0.5


def crop(image: np.ndarray, box: np.ndarray, size: int, flip: bool) -> np.ndarray:
    """uint8 (size, size, 3) RGB of a box."""
    left, top, right, bottom = box.tolist()
    # Not resize(box=...), which blends pixels from outside of the box in.
    part = Image.fromarray(image[top:bottom, left:right])
    pixels = np.asarray(part.resize((size, size), Image.Resampling.BILINEAR))
    return pixels[:, ::-1] if flip else pixels
