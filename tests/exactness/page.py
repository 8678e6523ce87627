"""The page of the results: a table, what each library says, and the shortest plans that fail."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.exactness import adapters
from tests.exactness.judge import VERDICTS
from tests.exactness.plans import COLUMNS

BEGIN, END = "<!-- results -->\n", "<!-- end of results -->\n"
_HEADINGS = {"same": "same ranks and workers", "workers": "other workers", "ranks": "other ranks"}


def write_page(path: Path, results: dict[str, Any]) -> None:
    """Put the results between the marks of a page; what stands around them stays."""
    text = path.read_text()
    head, rest = text.split(BEGIN)
    tail = rest.split(END)[1]
    lines = [*table(results), "", *promises(results), "", *failing(results)]
    path.write_text(head + BEGIN + "\n" + "\n".join(lines) + "\n\n" + END + tail)


def table(results: dict[str, Any]) -> Iterator[str]:
    yield f"| library | plans | {' | '.join(_HEADINGS[column] for column in COLUMNS)} |"
    yield "|---|---|---|---|---|"
    for name in adapters.NAMES:
        if name not in results:
            continue
        result, about = results[name], adapters.load(name).ABOUT
        versions = ", ".join(f"{title} {number}" for title, number in result["versions"].items())
        cells = [cell(result, column, column in about.promised) for column in COLUMNS]
        yield f"| {about.title} ({versions}) | {result['plans']} | {' | '.join(cells)} |"


def cell(result: dict[str, Any], column: str, is_promised: bool) -> str:
    """The verdicts of a column, and those of plans that stopped inside epochs if they differ."""
    words = told(result["counts"][column])
    within = result["inside"][column]
    if within and set(within) != set(result["counts"][column]):
        words += f"; inside epochs {told(within)}"
    return words if is_promised else f"*{words}*"


def told(counts: dict[str, int]) -> str:
    return ", ".join(f"{counts[name]} {name}" for name in VERDICTS if counts.get(name))


def promises(results: dict[str, Any]) -> Iterator[str]:
    yield "## What each says, and what its adapter follows"
    yield ""
    yield "| library | says | adapter | follows |"
    yield "|---|---|---|---|"
    for name in adapters.NAMES:
        if name in results:
            about = adapters.load(name).ABOUT
            yield f"| {about.title} | {about.promise} | `{name}` | {about.follows} |"


def failing(results: dict[str, Any]) -> Iterator[str]:
    yield "## The shortest plan of each other verdict"
    yield ""
    yield "| adapter | column | verdict | plan | seen |"
    yield "|---|---|---|---|---|"
    for name in adapters.NAMES:
        for line in results.get(name, {}).get("failing", ()):
            words = line["words"].replace("|", "\\|")
            column = _HEADINGS[line["column"]]
            yield f"| `{name}` | {column} | {line['verdict']} | `{line['plan']}` | {words} |"
