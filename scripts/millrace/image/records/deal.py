"""Which image becomes which record: ids, their dealing to files, and what fills the gaps of
rejected ones. Imported by every parse."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from millrace.common import jsonl
from millrace.image.records.folder import Row


def file_name(split: str, number: int, files: int) -> str:
    """`train-00000-of-00100.h5`."""
    return f"{split}-{number:05d}-of-{files:05d}.h5"


@dataclass(frozen=True)
class FilePlan:
    """The images of one record file in their order; record j has the id `first` + j * `step`."""

    name: str
    first: int
    step: int
    rows: Sequence[Row]

    def digest(self, pixels: dict) -> str:
        """Equal as long as the file would be the same bytes."""
        return jsonl.digest([pixels, self.as_dict()])

    def as_dict(self) -> dict:
        """As it stands in a partition file, a line for each image."""
        rows = [f"{label} {size} {mtime} {path}" for path, size, mtime, label in self.rows]
        return {
            "name": self.name,
            "first": self.first,
            "step": self.step,
            "rows": rows,
        }

    @classmethod
    def from_dict(cls, content: dict) -> FilePlan:
        """The plan that `as_dict` described."""
        rows = [_row(line) for line in content["rows"]]
        return cls(content["name"], content["first"], content["step"], rows)


def _row(line: str) -> Row:
    """The image of a line of a partition file."""
    label, size, mtime, path = line.split(" ", 3)
    return path, int(size), int(mtime), int(label)


def in_order(rows: Sequence[Row], seed: int) -> list[Row]:
    """The rows by id, shuffled by the seed."""
    shuffled = list(rows)
    random.Random(seed).shuffle(shuffled)
    return shuffled


def fill_gaps(order: Sequence[Row | None]) -> list[Row]:
    """The order with the last ones in its gaps, so that few files change with few images."""
    filled = list(order)
    for number, row in enumerate(order):
        while filled and filled[-1] is None:
            filled.pop()
        if row is None and number < len(filled):
            filled[number] = filled.pop()
    return [row for row in filled if row is not None]


def deal(split: str, order: Sequence[Row], files: int, shuffled: bool) -> Iterator[FilePlan]:
    """Files whose lengths differ by one at most. Shuffled ones get their records in turn, so that
    an added image changes one of them; else each gets a stretch of the order."""
    size, more = divmod(len(order), files)
    start = 0
    for number in range(files):
        name = file_name(split, number, files)
        length = size + 1 if number < more else size
        if shuffled:
            yield FilePlan(name, number, files, order[number::files])
        else:
            yield FilePlan(name, start, 1, order[start : start + length])
        start += length


def without(plans: Collection[FilePlan], rejected: Collection[str], split: str) -> list[FilePlan]:
    """The same images dealt to as many files, but for those that are rejected."""
    images = sum(len(plan.rows) for plan in plans)
    order: list[Row | None] = [None] * images
    for plan in plans:
        for number, row in enumerate(plan.rows):
            if row[0] not in rejected:
                order[plan.first + number * plan.step] = row

    is_shuffled = all(plan.step > 1 for plan in plans)
    if is_shuffled:
        rest = fill_gaps(order)
    else:
        rest = [row for row in order if row is not None]
    files = deal(split, rest, len(plans), is_shuffled)
    return list(files)
