"""Figures people read, as SVGs with the same bytes every time: colours that all eyes tell apart,
bars, curves; and how hours, bytes and shares are written.

Lengths are in inches from the figure's top left, so that a figure grows with what it shows and its
type does not shrink. Text stays text: it can be searched, and scripts that matplotlib's font lacks
appear in the reader's.
"""

from __future__ import annotations

import contextlib
import html
import io
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

# Okabe and Ito's palette (https://jfly.uni-koeln.de/color/) for any colour vision.
PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442")
INK = "#1B2126"
MUTED = "#59636E"
GRID = "#DDE2E7"
PAPER = "#FFFFFF"
# What inline_svg makes of the neutral colours, so that a page can define them for light and dark.
_VARIABLES = {
    INK: "--ink",
    MUTED: "--muted",
    GRID: "--grid",
    PAPER: "--paper",
}
_FONT = "system-ui, 'Segoe UI', 'Helvetica Neue', Arial, 'Noto Sans', 'DejaVu Sans', sans-serif"
# Neither XML nor eyes take these.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff\u2028\u2029]")
# Inches: a figure, a bar with its gap, a line of a legend; points: the font.
WIDTH = 9.0
_PITCH = 0.28
_LINE = 0.22
_SIZE = 9.5
Legend = Sequence[tuple[str, str]]  # name, colour
# matplotlib's settings that are not its defaults.
_STYLE = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": _SIZE,
    "text.color": INK,
    "text.parse_math": False,
    "axes.labelcolor": MUTED,
    "axes.edgecolor": GRID,
    "axes.facecolor": "none",
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "xtick.color": GRID,
    "xtick.labelcolor": MUTED,
    "xtick.major.size": 0,
    "ytick.color": GRID,
    "ytick.labelcolor": INK,
    "ytick.major.size": 0,
    "figure.facecolor": PAPER,
    "svg.fonttype": "none",
    "svg.hashsalt": "millrace",
}


@contextlib.contextmanager
def style() -> Iterator[None]:
    """Draw in the house's style inside this context, without a display; matplotlib's settings
    stay."""
    import matplotlib

    with matplotlib.rc_context(), warnings.catch_warnings():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_STYLE)
        # The reader's browser sets the text, so what matplotlib's own font lacks does not matter.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        yield


class Sheet:
    """A figure of WIDTH, in inches from its top left corner, with title, subtitle and legend.

    `body` is the height of what comes below `top`.
    """

    def __init__(self, body: float, title: str, subtitle: str, legend: Legend = ()) -> None:
        from matplotlib.figure import Figure
        from matplotlib.patches import Rectangle

        # Entries of the legend as (line, left, name, colour), wrapped at the right edge.
        entries = []
        line = 0
        left = 0.15
        for full_name, colour in legend:
            name = shorten(full_name, 3.2)
            width = 0.17 + text_width(name) + 0.22
            if left + width > WIDTH and left > 0.15:
                line = line + 1
                left = 0.15
            entries.append((line, left, name, colour))
            left += width

        self.top = 0.72 + (_LINE * (line + 1) + 0.12 if legend else 0)
        self.height = self.top + body
        self.figure: Figure = Figure(figsize=(WIDTH, self.height))
        self.text(0.15, 0.3, title, fontsize=12.5, fontweight="bold")
        self.text(0.15, 0.52, subtitle, color=MUTED)
        for line, left, name, colour in entries:
            baseline = 0.8 + _LINE * line
            self.text(left + 0.17, baseline, name)
            swatch = Rectangle(
                (left / WIDTH, 1 - baseline / self.height),
                width=0.11 / WIDTH,
                height=0.11 / self.height,
                facecolor=colour,
                transform=self.figure.transFigure,
            )
            self.figure.add_artist(swatch)

    def axes(self, left: float, top: float, width: float, height: float) -> Axes:
        """New axes with their top left corner at (left, top)."""
        bottom = self.height - top - height
        return self.figure.add_axes(
            (left / WIDTH, bottom / self.height, width / WIDTH, height / self.height)
        )

    def text(self, left: float, baseline: float, text: str, **font: Any) -> None:
        """A line of text, its baseline `baseline` inches below the top; `font` as for matplotlib's
        Text."""
        self.figure.text(left / WIDTH, 1 - baseline / self.height, label(text), **font)


@dataclass
class Panel:
    """Horizontal bars, the first on top; each series starts where the one before it ends."""

    title: str  # what they measure, and in which unit
    names: Sequence[str]
    # A colour, or one per bar; their lengths.
    series: Sequence[tuple[str | Sequence[str], Sequence[float]]]
    notes: Sequence[str]  # at the ends of the bars

    def __post_init__(self) -> None:
        self.names = [shorten(name, 2.6) for name in self.names]

    def draw(self, axes: Axes) -> None:
        bars = range(len(self.notes))
        ends = [0.0 for _ in bars]
        for colour, lengths in self.series:
            # A hairline of paper between the parts keeps them apart without their colours.
            axes.barh(
                bars, lengths, left=ends, height=0.68, color=colour, edgecolor=PAPER, linewidth=0.6
            )
            ends = [end + length for end, length in zip(ends, lengths, strict=True)]
        place: dict[str, Any] = {
            "textcoords": "offset points",
            "va": "center_baseline",
            "fontsize": 9,
        }
        for bar, note in enumerate(self.notes):
            axes.annotate(label(note), (ends[bar], bar), (5, 0), **place)
        axes.set_yticks(bars, self.names, va="center_baseline")
        axes.set_xlim(0, max(ends) or 1)
        axes.set_ylim(len(bars) - 0.4, -0.6)
        axes.grid(axis="x")
        axes.spines["bottom"].set_visible(False)


def bar_chart(
    title: str, subtitle: str, panels: Sequence[Panel], legend: Legend, nothing: str
) -> str:
    """The SVG of panels below each other, or of the sentence `nothing` if none has a bar.

    `legend` holds (name, colour).
    """
    panels = [panel for panel in panels if panel.notes]
    with style():
        if not panels:
            sheet = Sheet(0.38, title, subtitle)
            sheet.text(0.15, 0.88, nothing)
            return svg(sheet.figure, title, f"{subtitle}. {nothing}")

        # Room for the longest name at the left, and the longest note at the right.
        names = [text_width(name) for panel in panels for name in panel.names]
        notes = [text_width(note) for panel in panels for note in panel.notes]
        before = 0.1 + max(names)
        behind = 0.35 + max(notes)
        left = 0.15 + before
        width = WIDTH - 0.15 - before - behind
        heights = [_PITCH * len(panel.notes) + 0.72 for panel in panels]
        sheet = Sheet(sum(heights) - 0.1, title, subtitle, legend)
        for place, panel in enumerate(panels):
            top = sheet.top + sum(heights[:place])
            sheet.text(left, top + 0.14, panel.title, fontweight="bold")
            axes = sheet.axes(left, top + 0.22, width, _PITCH * len(panel.notes))
            panel.draw(axes)
            count_axis(axes.xaxis, min(5, 2 + round(width)), whole=False)
        return svg(sheet.figure, title, subtitle)


@dataclass(frozen=True)
class Curves:
    """Curves over steps."""

    title: str
    # A colour, matplotlib's dashes, points.
    lines: Sequence[tuple[str, str, Sequence[tuple[float, float]]]]


def line_chart(title: str, subtitle: str, panels: Sequence[Curves], legend: Legend = ()) -> str:
    """The SVG of panels side by side."""
    with style():
        sheet = Sheet(3.1, title, subtitle, legend)
        width = (WIDTH - 0.1) / len(panels) - 0.65
        for place, panel in enumerate(panels):
            left = 0.55 + (width + 0.65) * place
            sheet.text(left, sheet.top + 0.14, panel.title, fontweight="bold")
            axes = sheet.axes(left, sheet.top + 0.28, width, 2.25)
            for colour, dashes, points in panel.lines:
                x, y = zip(*points, strict=True) if points else ((), ())
                # Of few points each is shown: a line of one is not to be seen.
                marker = "o" if len(points) < 30 else ""
                axes.plot(x, y, dashes, color=colour, marker=marker, markersize=3)
            axes.set_ylim(bottom=0)
            axes.set_xlim(left=0)
            axes.grid()
            axes.set_xlabel("step")
            count_axis(axes.xaxis, min(5, 2 + round(width)))
            count_axis(axes.yaxis, whole=False)
        return svg(sheet.figure, title, subtitle)


def count_axis(axis: Any, ticks: int = 5, whole: bool = True) -> None:
    """Round ticks with thousands set apart on a matplotlib axis; `whole` if only whole numbers
    occur."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axis.set_major_locator(MaxNLocator(ticks, integer=whole, steps=[1, 2, 2.5, 5, 10]))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))


def svg(figure: Figure, title: str, description: str) -> str:
    """The figure as SVG, with a title and a description for those who do not see it; the same every
    time."""
    buffer = io.StringIO()
    figure.savefig(
        buffer, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type"))
    )
    text = re.sub(r"^.*?(?=<svg )", "", buffer.getvalue(), flags=re.DOTALL)
    text = text.replace("'DejaVu Sans', sans-serif", _FONT)
    title = html.escape(label(title))
    description = html.escape(label(description))
    head, _, body = text.partition(">")
    head += f' role="img" aria-label="{title}">\n <title>{title}</title><desc>{description}</desc>'
    lines = [line.rstrip() for line in (head + body).splitlines()]
    return "\n".join([*lines, ""])


def save_svg(path: str | os.PathLike, text: str) -> None:
    """Write what `svg` gave, atomically."""
    atomic.write_text(path, '<?xml version="1.0" encoding="utf-8"?>\n' + text)


def inline_svg(text: str, prefix: str) -> str:
    """The SVG for inside a page: ids made unique by `prefix`, neutral colours as CSS variables."""
    text = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{prefix}-", text)
    for colour, name in _VARIABLES.items():
        text = re.sub(f"{colour}\\b", f"var({name}, {colour})", text, flags=re.IGNORECASE)
    return text


def label(text: str) -> str:
    """A name on one line, without characters that cannot be shown."""
    return _CONTROL.sub("\ufffd", re.sub(r"[\t\r\n]+", " ", text))


def text_width(text: str) -> float:
    """About how wide a text is in inches, in any sans-serif font of _SIZE points."""

    def ems(char: str) -> float:
        if unicodedata.combining(char):
            return 0.0
        if unicodedata.east_asian_width(char) in "WF":
            return 1.0
        if char in " .,:;'|!iIjl":
            return 0.3
        if char.isupper() or char in "mwMW%":
            return 0.68
        return 0.56

    return sum(map(ems, text)) * _SIZE / 72


def shorten(text: str, width: float) -> str:
    """The text as `label` gives it, its middle left out if it is wider than `width` inches."""
    text = label(text)
    if text_width(text) <= width:
        return text
    length = len(text)
    while length > 2 and text_width(text[:length] + "m") > width:
        length -= 1
    head = (length * 2 + 2) // 3
    return f"{text[:head].rstrip()}…{text[len(text) - (length - head) :].lstrip()}"


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
            break
        size /= 1000
    return f"{size:.0f} {unit}" if size >= 99.5 or unit == "B" else f"{size:.1f} {unit}"


def human_share(part: float, whole: float = 1.0) -> str:
    """`12.3 %`; `<0.1 %` and `>99.9 %` for what is not quite none or all; a dash of nothing."""
    if not whole:
        return "–"
    # Sums of floats: a billionth must not tell all from nearly all.
    share = round(100 * part / whole, 7)
    if 0 < share < 0.05:
        return "<0.1 %"
    return ">99.9 %" if 99.95 <= share < 100 else f"{share:.1f} %"
