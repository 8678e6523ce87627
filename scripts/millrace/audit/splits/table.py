"""Pairs and what could not be compared, as people and programs read them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from millrace.audit.splits.content import Content
from millrace.audit.splits.pairs import Pair
from millrace.common.errors import counted

_TITLES = ("sample", "in", "held out", "in", "found by", "offset", "seconds", "confidence")


class Compared:
    """Counts of the samples of each split: those that were read, and those that were not."""

    def __init__(self) -> None:
        self.samples: Counter[str] = Counter()
        self.problems: dict[str, Counter[str]] = {}
        self.examples: dict[tuple[str, str], str] = {}  # of a split and a problem

    def counted(self, split: str, contents: Iterable[Content]) -> Iterator[Content]:
        """Pass on the samples of a split, and count them: with the reason, those that could not be
        read."""
        problems = self.problems.setdefault(split, Counter())
        for content in contents:
            self.samples[split] += 1
            if content.problem:
                problems[content.problem] += 1
                example = f"{content.sample.name} ({content.detail})"
                self.examples.setdefault((split, content.problem), example)
            yield content

    def lines(self) -> list[str]:
        """A line for each split, and one for each reason."""
        lines = []
        for split, samples in self.samples.items():
            reasons = self.problems[split]
            unread = f", {reasons.total()} of them not read" if reasons else ""
            lines.append(f"{split}: {counted(samples, 'sample')}{unread}")
            for problem, number in reasons.most_common():
                example = self.examples[split, problem]
                lines.append(f"  {number} x {problem}, such as {example}")
        return lines


def text(pairs: Sequence[Pair], compared: Compared, rows: int) -> str:
    """The first `rows` pairs as a table, and what was compared."""
    lines = []
    if pairs:
        lines += _aligned([_TITLES, *(_cells(pair) for pair in pairs[:rows])])
    if len(pairs) > rows:
        lines.append(f"... and {len(pairs) - rows} more: --json has all")
    lines += compared.lines()
    lines.append(_summary(pairs))
    return "\n".join(lines)


def _summary(pairs: Sequence[Pair]) -> str:
    if not pairs:
        return "no pairs"
    ways = Counter(pair.how for pair in pairs)
    shares = ", ".join(f"{number} by {how}" for how, number in ways.most_common())
    return f"{counted(len(pairs), 'pair')}: {shares}"


def _cells(pair: Pair) -> tuple[str, ...]:
    return (
        pair.sample,
        pair.split,
        pair.held_out,
        pair.of_split,
        pair.how,
        _number(pair.offset, "+.2f"),
        _number(pair.seconds, ".2f"),
        _number(pair.confidence, ".2f"),
    )


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _aligned(rows: Iterable[tuple[str, ...]]) -> list[str]:
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = map(str.ljust, row, widths)
        lines.append("  ".join(cells).rstrip())
    return lines


def document(pairs: Sequence[Pair], compared: Compared) -> dict:
    """The same, JSON-ready."""
    return {
        "pairs": [pair._asdict() for pair in pairs],
        "samples": dict(compared.samples),
        "not_read": {split: dict(rows) for split, rows in compared.problems.items() if rows},
    }
