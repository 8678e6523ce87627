"""A page for people: one HTML file that needs nothing else, with tables and figures, in light and
dark.

page.html.j2 is the frame of all pages, parts.html.j2 holds what they are made of, page.css their
look.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2

from millrace.common.report import made_from
from millrace.common.report.figures import human_bytes, human_count, human_share, inline_svg, label


@dataclass(frozen=True)
class Number:
    """A number as the table shows it; `value` is exact and goes along for machines."""

    value: float
    text: str


@dataclass(frozen=True)
class Code:
    """A word as files and settings spell it."""

    text: str


Cell = str | Number | Code


@dataclass(frozen=True)
class Table:
    """A table with a caption. The first cell of a row is its heading; columns with a Number are set
    right."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    total: Sequence[Cell] = ()

    def __post_init__(self) -> None:
        for row in (*self.rows, self.total):
            if row and len(row) != len(self.columns):
                raise ValueError(
                    f"{self.caption}: {len(row)} cells for {len(self.columns)} columns: {row}"
                )

    @property
    def numeric(self) -> list[bool]:
        """Which columns hold numbers."""
        rows = [row for row in (*self.rows, self.total) if row]
        return [
            any(isinstance(row[place], Number) for row in rows)
            for place in range(len(self.columns))
        ]


def render(template: str | os.PathLike, **values: Any) -> str:
    """The page of a template that extends page.html.j2, with these values."""
    path = Path(template)
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([path.parent, Path(__file__).parent]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        # Not of Markup, a subclass of str: what is marked safe stays as it is.
        finalize=lambda value: label(value) if type(value) is str else value,
    )
    filters = {
        "count": human_count,
        "bytes": human_bytes,
        "share": human_share,
        "inline": inline_svg,
    }
    environment.filters.update(filters)
    for kind in (Number, Code):
        environment.tests[kind.__name__] = lambda value, kind=kind: isinstance(value, kind)
    # Such words may be broken.
    environment.tests["long_word"] = lambda text: any(len(word) > 32 for word in text.split())
    template_of_page = environment.get_template(path.name)
    return template_of_page.render(values, made_from=made_from.line(_lane(path)))


def _lane(template: Path) -> str:
    """The lane that a template belongs to; "" for one that is not of this package."""
    package = Path(__file__).resolve().parents[2]
    path = template.resolve()
    if path.is_relative_to(package):
        return path.relative_to(package).parts[0]
    return ""
