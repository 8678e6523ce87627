"""Prints beside each record file: digests and perceptual hashes of its pictures, by which copies in
other splits are found, and a folder is known as a converted one.

Beside each record file lies `<name>.prints.json`: of every usable image its path, a digest of its
bytes, and the perceptual hash of its picture.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from millrace.common import atomic, jsonl
from millrace.common.errors import MillraceError
from millrace.common.fingerprints import pictures
from millrace.image.records.conversion import CONVERT_AGAIN, Conversion

_SUFFIX = ".prints.json"


class Print(NamedTuple):
    """An image's path from its split's folder, the digest of its bytes (hex), and the perceptual
    hash of its picture, 64 bits as hex: of copies only a few bits differ."""

    path: str
    digest: str
    look: str


def of_image(path: str, content: bytes, image: Any) -> Print:
    """The print of an image (PIL), whose file has this content."""
    digest = hashlib.blake2b(content, digest_size=16).hexdigest()
    return Print(path, digest, pictures.look(image))


def file_of(records: Path) -> Path:
    """Where the prints of a record file lie."""
    return records.with_suffix(_SUFFIX)


def are_in(folder: Path) -> bool:
    """Whether a folder holds prints, and so record files that were converted."""
    return any(folder.glob(f"*{_SUFFIX}"))


def write(records: Path, dealt: str, prints: Sequence[Print]) -> None:
    """Write the prints of a record file; `dealt` is the digest of its plan."""
    rows = [list(row) for row in prints]
    atomic.write_json(file_of(records), {"dealt": dealt, "prints": rows})


class Labelled(NamedTuple):
    """An image with its label."""

    print: Print
    label: int


def of_split(conversion: Conversion) -> Iterator[Labelled]:
    """The prints of all usable images of a split, in the order of its files. Raises MillraceError
    where they are missing."""
    for plan in conversion.plans:
        labels = {path: label for path, _, _, label in plan.rows}
        records = conversion.folder / plan.name
        known = read(records, plan.digest(conversion.pixels))
        if known is None:
            problem = "is missing, or of other images"
            raise MillraceError(problem, str(file_of(records)), CONVERT_AGAIN)
        for row in known:
            yield Labelled(row, labels[row.path])


def read(records: Path, dealt: str) -> list[Print] | None:
    """The prints of a record file; None if there are none of this plan."""
    path = file_of(records)
    # A pipe would be waited for.
    content = jsonl.read_or({}, path) if path.is_file() else {}
    if content.get("dealt") != dealt:
        return None
    return [Print(*row) for row in content["prints"]]
