"""Pairs and what could not be compared, as people and programs read them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from millrace.audit.splits.content import Content
from millrace.audit.splits.pairs import Pair
from millrace.common.errors import counted


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


def text(pairs: Sequence[Pair], compared: Compared, most: int) -> str:
    """The first pairs, a line each, and what was compared."""
    lines = [_line(pair) for pair in pairs[:most]]
    if len(pairs) > most:
        lines.append(f"... and {len(pairs) - most} more: --json has all")
    lines += compared.lines()
    ways = Counter(pair.how for pair in pairs)
    shares = ", ".join(f"{number} by {how}" for how, number in ways.most_common())
    lines.append(f"{counted(len(pairs), 'pair')}: {shares}" if pairs else "no pairs")
    return "\n".join(lines)


def _line(pair: Pair) -> str:
    line = f"{pair.split} {pair.sample} is {pair.of_split} {pair.held_out}, by {pair.how}"
    if pair.offset is not None:
        line += f", {pair.offset:+.2f} s, for {pair.seconds:.2f} s"
    if pair.confidence is not None:
        line += f", confidence {pair.confidence:.2f}"
    return line


def document(pairs: Sequence[Pair], compared: Compared) -> dict:
    """The same, JSON-ready."""
    return {
        "pairs": [pair._asdict() for pair in pairs],
        "samples": dict(compared.samples),
        "not_read": {split: dict(rows) for split, rows in compared.problems.items() if rows},
    }
