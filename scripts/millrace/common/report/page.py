"""A page for people: one HTML file that needs nothing else, with tables and figures, in light and dark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

from millrace.common.report.figures import label

_CSS = """
:root { color-scheme: light dark; --ink: #1b2126; --muted: #59636e; --grid: #dde2e7; --paper: #ffffff;
  --tile: #f5f7f9; --link: #005a9c; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8ecf0; --muted: #a3adb8; --grid: #353d46; --paper: #14181c;
  --tile: #1d2329; --link: #7cc0f5; } }
@media print { :root { color-scheme: light; --ink: #000; --muted: #444; --grid: #ccc; --paper: #fff; --tile: #fff; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2rem 1.25rem 4rem; max-width: 66rem; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, "Segoe UI", "Helvetica Neue", Arial, "Noto Sans", sans-serif; }
h1 { font-size: 1.75rem; line-height: 1.2; margin: 0 0 .25rem; }
h2 { font-size: 1.25rem; margin: 3rem 0 .25rem; }
p { max-width: 46rem; margin: .25rem 0 1rem; }
.muted, .tiles dt { color: var(--muted); }
nav { margin: 1.25rem 0 0; display: flex; flex-wrap: wrap; gap: .25rem 1.25rem; }
a { color: var(--link); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(7.5rem, 1fr)); gap: .75rem; margin: 1.5rem 0 0; }
.tiles div { background: var(--tile); border: 1px solid var(--grid); border-radius: .5rem; padding: .6rem .85rem; }
.tiles dt { font-size: .85rem; }
.tiles dd { margin: 0; font-size: 1.4rem; font-weight: 600; font-variant-numeric: tabular-nums; }
.wide { overflow-x: auto; margin: 1rem 0 1.5rem; }
.wide:focus-visible { outline: 2px solid var(--link); }
table { border-collapse: collapse; font-size: .92rem; min-width: 100%; }
caption { text-align: left; font-weight: 600; padding-bottom: .4rem; }
th, td { padding: .32rem .9rem .32rem 0; text-align: left; vertical-align: baseline;
  border-bottom: 1px solid var(--grid); }
td { min-width: 3.5rem; }
thead th { color: var(--muted); font-weight: 500; vertical-align: bottom; border-bottom: 2px solid var(--grid); }
tbody th { font-weight: 500; min-width: 8rem; }
td.n, th.n { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums;
  padding: .32rem 0 .32rem 1.1rem; }
td.n + td:not(.n), td.n + th:not(.n), th.n + th:not(.n) { padding-left: 1.75rem; }
thead th.n { white-space: normal; }
tfoot th, tfoot td { font-weight: 600; border-bottom: 0; border-top: 2px solid var(--grid); }
.long { overflow-wrap: anywhere; }
code { font: .9em ui-monospace, "SF Mono", Consolas, "DejaVu Sans Mono", monospace; }
figure { margin: 1rem 0 1.5rem; }
figure svg { display: block; width: 100%; height: auto; max-width: 54rem; margin-left: -1.2%; }
"""

_LONGEST_WORD = 32


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


@dataclass
class Table:
    """A table with a caption. The first cell of a row is its heading; columns with a Number are set right."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    total: Sequence[Cell] = ()

    def html(self) -> str:
        """The table in a region that scrolls sideways where it is too wide. Every row has a cell for each
        column."""
        numeric = [
            any(isinstance(row[place], Number) for row in (*self.rows, self.total) if row)
            for place in range(len(self.columns))
        ]
        head = "".join(
            f'<th scope="col"{" class=n" if right else ""}>{text_html(name)}</th>'
            for name, right in zip(self.columns, numeric, strict=True)
        )
        foot = f"<tfoot>{_row(self.total, numeric)}</tfoot>" if self.total else ""
        body = "\n".join(_row(row, numeric) for row in self.rows)
        # A region that scrolls must be reachable with the keyboard, and then needs a name.
        return (
            f'<div class="wide" role="region" tabindex="0" aria-label="{text_html(self.caption)}">\n'
            f"<table><caption>{text_html(self.caption)}</caption>\n<thead><tr>{head}</tr></thead>\n"
            f"<tbody>\n{body}\n</tbody>{foot}</table></div>"
        )


@dataclass
class Section:
    """A heading with paragraphs, tables and figures (`parts`: HTML made with this module)."""

    anchor: str
    title: str
    parts: list[str] = field(default_factory=list)


def text_html(text: str) -> str:
    """A text for the inside of an element or of an attribute in double quotes."""
    return escape(label(text), quote=True)


def paragraph(text: str, muted: bool = False) -> str:
    """A paragraph of plain text; `muted` in the colour of side remarks."""
    return f'<p class="muted">{text_html(text)}</p>' if muted else f"<p>{text_html(text)}</p>"


def figure(svg: str) -> str:
    """A figure from figures.inline_svg."""
    return f"<figure>\n{svg}</figure>"


def page(title: str, lead: str, tiles: Sequence[tuple[str, Number]], sections: Sequence[Section]) -> str:
    """The whole page: title, one sentence, key figures, table of contents, sections."""
    shown = "".join(
        f'<div><dt>{text_html(name)}</dt><dd><data value="{number.value!r}">{text_html(number.text)}</data></dd></div>'
        for name, number in tiles
    )
    links = "".join(f'<a href="#{section.anchor}">{text_html(section.title)}</a>' for section in sections)
    bodies = "\n".join(
        f'<section aria-labelledby="{section.anchor}">\n<h2 id="{section.anchor}">{text_html(section.title)}</h2>\n'
        + "\n".join(section.parts)
        + "\n</section>"
        for section in sections
    )
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<title>{text_html(title)}</title>\n'
        f"<style>{_CSS}</style>\n</head>\n<body>\n<header>\n<h1>{text_html(title)}</h1>\n{paragraph(lead, True)}\n"
        f'<dl class="tiles">{shown}</dl>\n<nav aria-label="Contents">{links}</nav>\n</header>\n'
        f"<main>\n{bodies}\n</main>\n</body>\n</html>\n"
    )


def _row(cells: Sequence[Cell], numeric: Sequence[bool]) -> str:
    shown = []
    for place, (cell, right) in enumerate(zip(cells, numeric, strict=True)):
        kind = " class=n" if right else ""
        if isinstance(cell, Number):
            content = f'<data value="{cell.value!r}">{text_html(cell.text)}</data>'
        else:
            text = cell.text if isinstance(cell, Code) else cell
            content = f"<code>{text_html(text)}</code>" if isinstance(cell, Code) else text_html(text)
            # Words stay whole, except those that would push the rest of the table out of sight.
            if max(map(len, text.split()), default=0) > _LONGEST_WORD:
                content = f'<span class="long">{content}</span>'
        shown.append(f'<th scope="row"{kind}>{content}</th>' if place == 0 else f"<td{kind}>{content}</td>")
    return f"<tr>{''.join(shown)}</tr>"
