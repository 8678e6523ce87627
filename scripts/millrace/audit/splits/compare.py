"""The splits of somebody's data, compared: train with all that are held out, and these with each
other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from pathlib import Path

from millrace.audit.splits.content import contents
from millrace.audit.splits.pairs import Comparison, Held, Pair
from millrace.audit.splits.sources import read
from millrace.audit.splits.table import Compared
from millrace.common.fingerprints.scale import SEARCHED_STEPS

_ORDER = attrgetter("of_split", "held_out", "split", "sample", "how")


def compare(
    train: Sequence[Path], held_out: Mapping[str, Sequence[Path]], workers: int
) -> tuple[list[Pair], Compared]:
    """The pairs of train with each of the splits that are held out, by name, and of those with each
    other: of two, the first one's samples are named.

    Train is read once, and the words of its sound are not kept. Raises MillraceError for what is
    no split.
    """
    compared = Compared()
    rows = []
    for name, paths in held_out.items():
        known = contents(read(paths), 1, workers)
        for content in compared.counted(name, known):
            rows.append(Held(name, content))

    comparison = Comparison(rows)
    of_train = contents(read(train), SEARCHED_STEPS, workers)
    searched = compared.counted("train", of_train)
    pairs = list(comparison.pairs("train", searched))
    names = list(held_out)
    for number, name in enumerate(names[:-1], 1):
        of_split = [held.content for held in rows if held.split == name]
        later = names[number:]
        found = comparison.pairs(name, (content.searched() for content in of_split))
        pairs += [pair for pair in found if pair.of_split in later]
    return sorted(pairs, key=_ORDER), compared
