"""Figures people read: one style, colours that all eyes tell apart, and SVGs with the same bytes every time.

Lengths are in inches from the figure's top left, so that a figure grows with what it shows and its type does
not shrink. Text stays text: it can be searched, and scripts that matplotlib's font lacks appear in the
reader's.
"""

from __future__ import annotations

import contextlib
import io
import math
import os
import re
import unicodedata
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from millrace.common import atomic

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette (https://jfly.uni-koeln.de/color/), told apart with any colour vision; grey is for
# the rest.
PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442")
REST = "#9AA4AF"
INK, MUTED, GRID, PAPER = "#1B2126", "#59636E", "#DDE2E7", "#FFFFFF"
# What inline_svg makes of the neutral colours, so that a page can define them for light and dark.
_VARIABLES = {INK: "--ink", MUTED: "--muted", GRID: "--grid", PAPER: "--paper"}
_FONT = "system-ui, 'Segoe UI', 'Helvetica Neue', Arial, 'Noto Sans', 'DejaVu Sans', sans-serif"
# Neither XML nor eyes take these.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff\u2028\u2029]")


@contextlib.contextmanager
def style() -> Iterator[None]:
    """Draw in the house's style inside this context. It needs no display, and leaves matplotlib's settings
    alone."""
    import matplotlib

    settings = {
        "font.family": "sans-serif",
        "font.sans-serif": ["DejaVu Sans"],
        "font.size": 9.5,
        "text.parse_math": False,
        "text.color": INK,
        "axes.labelcolor": MUTED,
        "axes.edgecolor": GRID,
        "axes.facecolor": "none",
        "axes.axisbelow": True,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": False,
        "grid.color": GRID,
        "grid.linewidth": 0.8,
        "xtick.color": GRID,
        "ytick.color": GRID,
        "xtick.labelcolor": MUTED,
        "ytick.labelcolor": INK,
        "xtick.major.size": 0,
        "ytick.major.size": 0,
        "figure.facecolor": PAPER,
        "svg.fonttype": "none",
        "svg.hashsalt": "millrace",
    }
    with matplotlib.rc_context(), warnings.catch_warnings():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(settings)
        # The reader's browser sets the text, so what matplotlib's own font lacks does not matter.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        yield


@dataclass
class Sheet:
    """A figure measured in inches from its top left corner."""

    figure: Figure
    width: float
    height: float

    @classmethod
    def new(cls, width: float, height: float) -> Sheet:
        """An empty sheet of this size in inches."""
        from matplotlib.figure import Figure

        return cls(Figure(figsize=(width, height)), width, height)

    def axes(self, left: float, top: float, width: float, height: float) -> Axes:
        """New axes with their top left corner at (left, top)."""
        bottom = self.height - top - height
        return self.figure.add_axes(
            (left / self.width, bottom / self.height, width / self.width, height / self.height)
        )

    def text(self, left: float, baseline: float, text: str, **font: Any) -> None:
        """A line of text, its baseline `baseline` inches below the top; `font` as matplotlib's Text takes
        it."""
        self.figure.text(left / self.width, 1 - baseline / self.height, label(text), **font)

    def heading(self, title: str, subtitle: str = "") -> None:
        """Title and subtitle in the first half inch."""
        self.text(0.15, 0.3, title, fontsize=12.5, fontweight="bold")
        if subtitle:
            self.text(0.15, 0.52, subtitle, color=MUTED)

    def legend(self, left: float, top: float, entries: Sequence[tuple[str, str]]) -> None:
        """Swatches with names, from (left, top) on, wrapped at the right edge; see legend_height."""
        from matplotlib.patches import Rectangle

        for row, x, name, colour in _legend_places(entries, self.width - left):
            baseline = top + 0.22 * row + 0.14
            self.text(left + x + 0.17, baseline, name)
            corner = ((left + x) / self.width, 1 - baseline / self.height)
            size = (0.11 / self.width, 0.11 / self.height)
            self.figure.add_artist(
                Rectangle(corner, *size, facecolor=colour, transform=self.figure.transFigure)
            )


def legend_height(entries: Sequence[tuple[str, str]], width: float) -> float:
    """Height in inches of a legend in this width."""
    return 0.22 * (1 + max((row for row, *_ in _legend_places(entries, width)), default=-1))


def _legend_places(entries: Sequence[tuple[str, str]], width: float) -> Iterator[tuple[int, float, str, str]]:
    row, x = 0, 0.0
    for name, colour in entries:
        name = shorten(name, 3.2)
        needed = 0.17 + text_width(name) + 0.22
        if x and x + needed > width:
            row, x = row + 1, 0.0
        yield row, x, name, colour
        x += needed


def stacked_bars(
    axes: Axes, series: Sequence[tuple[str, Sequence[float]]], names: Sequence[str], totals: Sequence[str]
) -> None:
    """Horizontal bars, the first on top: `series` are (colour, length per bar), `names` left, `totals` at the
    ends."""
    sums = [math.fsum(values[bar] for _, values in series) for bar in range(len(names))]
    longest = max(sums, default=0) or 1
    ends = [0.0] * len(names)
    for colour, values in series:
        # A hairline of paper between the parts keeps them apart without their colours.
        axes.barh(
            range(len(names)), values, left=ends, height=0.68, color=colour, edgecolor=PAPER, linewidth=0.6
        )
        ends = [end + value for end, value in zip(ends, values, strict=True)]
    for bar, total in enumerate(totals):
        axes.annotate(
            label(total),
            (sums[bar], bar),
            (5, 0),
            textcoords="offset points",
            va="center_baseline",
            fontsize=9,
        )
    axes.set_yticks(range(len(names)), [label(name) for name in names], va="center_baseline")
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set_xlim(0, longest)
    axes.grid(axis="x")
    axes.spines["bottom"].set_visible(False)


def count_axis(axis: Any, ticks: int = 5, whole: bool = True) -> None:
    """Round ticks with thousands set apart on a matplotlib axis; `whole` where only whole numbers occur."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axis.set_major_locator(MaxNLocator(ticks, integer=whole, steps=[1, 2, 2.5, 5, 10]))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))


def svg(figure: Figure, title: str, description: str = "") -> str:
    """The figure as SVG with a title (and description) for those who do not see it; the same figure, the same
    text."""
    buffer = io.StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    figure.savefig(buffer, format="svg", metadata=nothing)
    text = re.sub(r"^.*?(?=<svg )", "", buffer.getvalue(), flags=re.DOTALL)
    text = text.replace("'DejaVu Sans', sans-serif", _FONT)
    told = f"<title>{_escape(title)}</title>" + (
        f"<desc>{_escape(description)}</desc>" if description else ""
    )
    head, _, body = text.partition(">")
    text = f'{head} role="img" aria-label="{_escape(title)}">\n {told}{body}'
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


def save_svg(path: str | os.PathLike, text: str) -> None:
    """Write what `svg` gave, atomically."""
    atomic.write_text(path, '<?xml version="1.0" encoding="utf-8"?>\n' + text)


def inline_svg(text: str, prefix: str) -> str:
    """The SVG for the inside of an HTML page: ids made unique by `prefix`, neutral colours as CSS
    variables."""
    text = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{prefix}-", text)
    for colour, name in _VARIABLES.items():
        text = re.sub(f"{colour}\\b", f"var({name}, {colour})", text, flags=re.IGNORECASE)
    return text


def _escape(text: str) -> str:
    for char, entity in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ('"', "&quot;")):
        text = text.replace(char, entity)
    return _CONTROL.sub("\ufffd", text)


def label(text: str) -> str:
    """A name on one line, without characters that cannot be shown."""
    return _CONTROL.sub("\ufffd", re.sub(r"[\t\r\n]+", " ", text))


def text_width(text: str, size: float = 9.5) -> float:
    """About how wide a text is in inches, in any sans-serif font of `size` points."""
    ems = sum(
        0.0
        if unicodedata.combining(char)
        else 1.0
        if unicodedata.east_asian_width(char) in "WF"
        else 0.3
        if char in " .,:;'|!iIjl"
        else 0.68
        if char.isupper() or char in "mwMW%"
        else 0.56
        for char in text
    )
    return ems * size / 72


def shorten(text: str, width: float, size: float = 9.5) -> str:
    """The text as `label` gives it, its middle left out where it is wider than `width` inches."""
    text = label(text)
    if text_width(text, size) <= width:
        return text
    kept = len(text)
    while kept > 2 and text_width(text[:kept], size) > width - size / 72:
        kept -= 1
    head = (kept * 2 + 2) // 3
    return f"{text[:head].rstrip()}…{text[len(text) - (kept - head) :].lstrip()}"


def human_count(count: float) -> str:
    """`12,345`."""
    return f"{count:,.0f}"


def human_hours(hours: float) -> str:
    """Hours as a person says them: `1,234 h`, `12.3 h`, `45 min`, `30 s`, `0 h`."""
    if hours >= 99.95:
        return f"{hours:,.0f} h"
    if hours >= 1.995:
        return f"{hours:.1f} h"
    if hours * 60 >= 1:
        return f"{hours * 60:.0f} min" if hours * 60 >= 9.95 else f"{hours * 60:.1f} min"
    return f"{hours * 3600:.0f} s" if hours > 0 else "0 h"


def human_bytes(size: float) -> str:
    """Bytes in powers of 1000: `1.2 GB`."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if size < 999.5 or unit == "TB":
            return f"{size:.0f} {unit}" if size >= 99.5 or unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return ""


def human_share(part: float, whole: float) -> str:
    """`12.3 %`; `<0.1 %` and `>99.9 %` for what is not quite none or all; a dash of nothing."""
    if not whole:
        return "–"
    # Sums of floats: a billionth must not tell all from nearly all.
    share = round(100 * part / whole, 7)
    if 0 < share < 0.05:
        return "<0.1 %"
    return ">99.9 %" if 99.95 <= share < 100 else f"{share:.1f} %"


def nice_step(span: float, most: int) -> float:
    """The smallest of 1, 2, 2.5, 5 times a power of ten that divides `span` into at most `most` steps."""
    raw = max(span, 1e-12) / most
    power = 10.0 ** math.floor(math.log10(raw))
    return next(step * power for step in (1, 2, 2.5, 5, 10) if step * power >= raw * (1 - 1e-9))
