"""Pictures that show the same in other bytes: a perceptual hash finds candidates, pixels decide."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

# Perceptual hashes of 64 bits differ in 4 at most between 97 % of 120 photos and their copies,
# encoded anew as JPEG (quality 50 to 90) or WebP, or halved. Some unrelated pictures are as near,
# of small ones many: 27 pairs of scikit-learn's digits. So pixels decide.
_MOST_BITS = 4
# Mean difference of the pixels of both, of 255, at _SIDE x _SIDE: 0.6 between a photo and its copy
# as JPEG of quality 75 (1.1 in the worst 5 %), 3.8 between the two digits that are most alike.
MOST_DIFFERENCE = 2.5
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
    """The mean differences of a small picture and others (n, ...): those up to MOST_DIFFERENCE show
    the same."""
    return np.abs(others - picture).mean(axis=(1, 2, 3))


def near(looks: Sequence[str], known: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The pairs of hashes that differ in at most _MOST_BITS bits, in the order of `looks`: such two
    are equal in one of _MOST_BITS + 1 parts."""
    own = _numbers(looks)
    others = _numbers(known)
    pairs: set[tuple[int, int]] = set()
    edges = np.linspace(0, 64, _MOST_BITS + 2).astype(int).tolist()
    for low, high in pairwise(edges):
        pairs.update(_near_by_part(own, others, low, high))
    for number, of in sorted(pairs):
        yield looks[number], known[of]


def _numbers(looks: Sequence[str]) -> np.ndarray:
    numbers = [int(look, 16) for look in looks]
    return np.array(numbers, np.uint64)


def _near_by_part(
    own: np.ndarray, others: np.ndarray, low: int, high: int
) -> Iterator[tuple[int, int]]:
    """The numbers of near hashes whose bits from `low` to `high` are equal."""
    wanted = _bits(own, low, high)
    parts = _bits(others, low, high)
    order = np.argsort(parts, kind="stable")
    ordered = parts[order]
    firsts = np.searchsorted(ordered, wanted, "left")
    lasts = np.searchsorted(ordered, wanted, "right")
    for number in np.flatnonzero(lasts > firsts).tolist():
        first = firsts[number]
        last = lasts[number]
        same_part = order[first:last]
        different = np.bitwise_count(others[same_part] ^ own[number])
        for of in same_part[different <= _MOST_BITS].tolist():
            yield number, of


def _bits(hashes: np.ndarray, low: int, high: int) -> np.ndarray:
    """The bits from `low` to `high` of each hash."""
    mask = np.uint64((1 << (high - low)) - 1)
    return (hashes >> np.uint64(low)) & mask
