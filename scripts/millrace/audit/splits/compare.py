"""The splits of somebody's data, compared with each other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from millrace.audit.splits.content import Content, contents
from millrace.audit.splits.content import read as read_sample
from millrace.audit.splits.pairs import Comparison, Pair, Split
from millrace.audit.splits.samples import Place, Sample
from millrace.audit.splits.sources import read
from millrace.audit.splits.table import Compared
from millrace.common.fingerprints.scale import SEARCHED_STEPS


def compare(
    train: Sequence[Path], held_out: Mapping[str, Sequence[Path]], workers: int
) -> tuple[list[Pair], Compared]:
    """The pairs of train with each of the splits that are held out, by name, and of those with each
    other: of two, the first one's samples are named.

    Train is read once, and the words of its sound are not kept. Raises MillraceError for what is
    no split.
    """
    compared = Compared()
    splits = []
    for name, paths in held_out.items():
        known = list(_counted(name, contents(read(paths), 1, workers), compared))
        splits.append(Split(name, known))
    comparison = Comparison(splits)
    of_train = contents(read(train), SEARCHED_STEPS, workers)
    pairs = list(comparison.pairs("train", _counted("train", of_train, compared)))
    for number, split in enumerate(splits[:-1]):
        searched = [each._replace(words=each.words[::SEARCHED_STEPS]) for each in split.contents]
        later = {other.name for other in splits[number + 1 :]}
        found = comparison.pairs(split.name, searched)
        pairs += [pair for pair in found if pair.of_split in later]
    return sorted(pairs, key=_order), compared


def files_shared(
    train: Iterable[str], held_out: Iterable[str], has_time: Callable[[], bool]
) -> list[Pair] | None:
    """The pairs of files that two splits are made of, named by their paths; None if there was not
    the time to read all of them."""
    sides: list[list[Content]] = []
    for paths, steps in ((held_out, 1), (train, SEARCHED_STEPS)):
        side = []
        for path in paths:
            side.append(read_sample(Sample(path, Place(path)), steps))
            if not has_time():
                return None
        sides.append(side)
    comparison = Comparison([Split("validation", sides[0])])
    return sorted(comparison.pairs("train", sides[1]), key=_order)


def _order(pair: Pair) -> tuple:
    return pair.of_split, pair.held_out, pair.split, pair.sample, pair.how


def _counted(split: str, found: Iterable[Content], compared: Compared) -> Iterator[Content]:
    for content in found:
        compared.count(split, content)
        yield content
