"""A page for people: one HTML file that needs nothing else, with tables and figures, in light and dark.

What it looks like is in page.html.j2 and page.css beside this file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import jinja2

from millrace.common.report.figures import inline_svg, label

# Words longer than this many characters may be broken.
LONG_WORD = 32


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
class Paragraph:
    """Plain text; `muted` in the colour of side remarks."""

    text: str
    muted: bool = False


@dataclass(frozen=True)
class Drawing:
    """An SVG of figures.svg under a name that is its own on the page."""

    name: str
    svg: str

    @property
    def inline(self) -> str:
        """The SVG as part of the page."""
        return inline_svg(self.svg, self.name)


@dataclass(frozen=True)
class Table:
    """A table with a caption. The first cell of a row is its heading; columns with a Number are set right."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    total: Sequence[Cell] = ()

    def __post_init__(self) -> None:
        for row in (*self.rows, self.total):
            if row and len(row) != len(self.columns):
                raise ValueError(f"{self.caption}: {len(row)} cells for {len(self.columns)} columns: {row}")

    @property
    def numeric(self) -> list[bool]:
        """Which columns hold numbers."""
        rows = [row for row in (*self.rows, self.total) if row]
        return [any(isinstance(row[place], Number) for row in rows) for place in range(len(self.columns))]


@dataclass(frozen=True)
class Section:
    """A heading with paragraphs, tables and figures."""

    anchor: str
    title: str
    parts: Sequence[Paragraph | Drawing | Table]


def page(title: str, lead: str, tiles: Sequence[tuple[str, Number]], sections: Sequence[Section]) -> str:
    """The whole page: title, one sentence, key figures, table of contents, sections."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        # Not of Markup, a subclass of str: what is marked safe stays as it is.
        finalize=lambda value: label(value) if type(value) is str else value,
    )
    for kind in (Number, Code, Table, Drawing):
        environment.tests[kind.__name__] = lambda value, kind=kind: isinstance(value, kind)
    environment.tests["long_word"] = lambda text: max(map(len, text.split()), default=0) > LONG_WORD
    template = environment.get_template("page.html.j2")
    return template.render(title=title, lead=lead, tiles=tiles, sections=sections)
