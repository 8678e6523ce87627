"""Pictures that show the same in other bytes: a perceptual hash finds candidates, pixels decide."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

# Perceptual hashes of 64 bits differ in 4 at most between 97 % of 120 photos and their copies,
# encoded anew as JPEG (quality 50 to 90) or WebP, or halved. Some unrelated pictures are as near,
# of small ones many: 27 pairs of scikit-learn's digits. So pixels decide.
_MOST_BITS = 4
# Mean difference of the pixels of both, of 255, at _SIDE x _SIDE: 0.6 between a photo and its copy
# as JPEG of quality 75 (1.1 in the worst 5 %), 3.8 between the two digits that are most alike.
MOST_DIFFERENCE = 2.5
# Other letters on the same plate: few pixels differ, but by 24 and more. JPEG (quality 50 and up),
# WebP or half the size differ by 11 at most in photos of 128 pixels a side, by 14 in those of 96.
_MOST_OF_A_PIXEL = 20
_LEAST_RANGE = 3  # of a channel at _SIDE x _SIDE; a picture of less is of one colour
_SIDE = 32
_SHORT_SIDE = 64  # pixels, at least, of what is hashed


def look(image: Any) -> str:
    """The perceptual hash of an image (PIL), 64 bits as hex: of copies only a few bits differ."""
    import imagehash  # comparing does without

    # The hash looks at 32 x 32 pixels. Shrunk before by a whole number, which is quick, a photo
    # takes a third of the time.
    shrunk = image.reduce(max(1, min(image.size) // _SHORT_SIDE))
    return str(imagehash.phash(shrunk))


def small(image: Any) -> np.ndarray:
    """What is compared of an image (PIL): int16 (_SIDE, _SIDE, 3)."""
    from PIL import Image

    picture = image.convert("RGB").resize((_SIDE, _SIDE), Image.Resampling.BILINEAR)
    return np.asarray(picture, np.int16)


def differences(picture: np.ndarray, others: np.ndarray) -> np.ndarray:
    """The mean differences of a small picture and others (n, ...), 255 where a pixel differs much:
    those up to MOST_DIFFERENCE show the same. A picture of one colour, as that of an icon whose
    shape lies in its alpha, tells nothing: 255 too."""
    of_pixels = np.abs(others - picture).mean(axis=3)
    is_other = of_pixels.max(axis=(1, 2)) > _MOST_OF_A_PIXEL
    is_plain = np.ptp(picture, axis=(0, 1)).max() < _LEAST_RANGE
    return np.where(is_other | is_plain, 255.0, of_pixels.mean(axis=(1, 2)))


def near(looks: Sequence[str], known: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The pairs of hashes that differ in at most _MOST_BITS bits, in the order of `looks`."""
    others = _numbers(known)
    for look, number in zip(looks, _numbers(looks), strict=True):
        different = np.bitwise_count(others ^ number)
        for place in np.flatnonzero(different <= _MOST_BITS).tolist():
            yield look, known[place]


def _numbers(looks: Sequence[str]) -> np.ndarray:
    numbers = [int(look, 16) for look in looks]
    return np.array(numbers, np.uint64)
