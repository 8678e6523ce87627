"""Images of train that are in val too: of the same bytes, or the same picture in other bytes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import NamedTuple

import numpy as np

from millrace.common.fingerprints import pictures
from millrace.common.leaks import leakage
from millrace.image.records.conversion import Conversion
from millrace.image.records.prints import Labelled, of_split


class Leak(NamedTuple):
    """An image that is also in a held-out split, there as `original`."""

    image: Labelled
    original: Labelled
    is_same_bytes: bool

    @property
    def has_other_label(self) -> bool:
        return self.image.label != self.original.label

    def as_dict(self, held_out: str, classes: Sequence[str]) -> dict[str, str]:
        """A line of leaks.jsonl."""
        return {
            "image": self.image.print.path,
            "label": classes[self.image.label],
            "reason": leakage.reason(held_out),
            "original": self.original.print.path,
            "original_label": classes[self.original.label],
            "detail": self.detail(held_out, classes),
        }

    def detail(self, held_out: str, classes: Sequence[str]) -> str:
        """What it repeats, for people."""
        what = "bytes" if self.is_same_bytes else "picture"
        text = f"the same {what} as {self.original.print.path} of {held_out}"
        if self.has_other_label:
            text += f", which has another label: {classes[self.original.label]}"
        return text


def find(conversion: Conversion, held_out: Conversion, pool: Executor) -> list[Leak]:
    """The images of a split that are also in a held-out one, each once, by their paths."""
    known = list(of_split(held_out))
    by_digest: dict[str, Labelled] = {}
    for image in known:
        by_digest.setdefault(image.print.digest, image)
    leaks = []
    others = []
    for image in of_split(conversion):
        original = by_digest.get(image.print.digest)
        if original is None:
            others.append(image)
        else:
            leaks.append(Leak(image, original, is_same_bytes=True))

    read = partial(_small, conversion, pool)
    read_known = partial(_small, held_out, pool)
    leaks += _same_pictures(others, known, read, read_known)
    return sorted(leaks, key=lambda leak: leak.image.print.path)


# Small pictures of images, by their paths.
_Read = Callable[[Sequence[Labelled]], dict[str, np.ndarray]]


def _same_pictures(
    searched: Sequence[Labelled], known: Sequence[Labelled], read: _Read, read_known: _Read
) -> Iterator[Leak]:
    """The images that show what a known one shows, by their pixels. Only those with a hash near
    that of a known one are read."""
    of_look = _by_look(searched)
    known_of_look = _by_look(known)
    near = list(pictures.near(list(of_look), list(known_of_look)))
    pixels = read([image for look, _ in near for image in of_look[look]])
    known_pixels = read_known([image for _, look in near for image in known_of_look[look]])

    originals: dict[str, list[Labelled]] = defaultdict(list)
    for look, known_look in near:
        originals[look] += known_of_look[known_look]
    for look, candidates in originals.items():
        compared = np.stack([known_pixels[image.print.path] for image in candidates])
        for image in of_look[look]:
            differences = pictures.differences(pixels[image.print.path], compared)
            best = int(differences.argmin())
            if differences[best] <= pictures.MOST_DIFFERENCE:
                yield Leak(image, candidates[best], is_same_bytes=False)


def _by_look(images: Sequence[Labelled]) -> dict[str, list[Labelled]]:
    result: dict[str, list[Labelled]] = defaultdict(list)
    for image in images:
        result[image.print.look].append(image)
    return result


def _small(
    conversion: Conversion, pool: Executor, images: Sequence[Labelled]
) -> dict[str, np.ndarray]:
    """Read each picture once, and make it small."""
    paths = list(dict.fromkeys(image.print.path for image in images))
    small = pool.map(lambda path: pictures.small(conversion.content(path)[1]), paths)
    return dict(zip(paths, small, strict=True))
