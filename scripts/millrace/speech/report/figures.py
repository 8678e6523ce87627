"""The figures of the corpus report, as SVG: hours, distributions, rejects."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd

from millrace.common.report import figures
from millrace.common.report.figures import (
    PALETTE,
    REST,
    Panel,
    Sheet,
    human_count,
    human_hours,
    human_share,
)
from millrace.speech.corpus.splits import SPLITS
from millrace.speech.report.corpus import Corpus

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Countries of a panel; what is beyond is summed up in one bar, and stands in the tables.
MAX_BARS = 60
IN_SHARDS = PALETTE[0]
REJECTED = PALETTE[5]


def hours(corpus: Corpus) -> str:
    """Hours in shards per country, stacked by split, the largest country first."""
    table = corpus.hours
    total = table.to_numpy().sum()
    splits = table.sum()
    order = table.sum(axis=1).sort_values(ascending=False, kind="stable").index
    bars = _cut(table.loc[order])
    unit = "h"
    word = "hours"
    if bars.sum(axis=1).max() < 2:
        bars *= 60
        unit = "min"
        word = "minutes"

    legend = []
    series = []
    for split, colour in zip(SPLITS, PALETTE, strict=False):
        legend.append((f"{split} {human_share(splits[split], total)}", colour))
        series.append((colour, list(bars[split])))
    panel = Panel(
        f"Audio in shards ({word})",
        list(bars.index),
        series,
        notes=[_one_decimal(amount, unit) for amount in bars.sum(axis=1)],
    )
    noun = "country" if len(table) == 1 else "countries"
    return figures.bar_chart(
        "Hours in shards per country and split",
        f"{human_hours(total)} in {len(table)} {noun}",
        [panel],
        legend,
        nothing="No country has a segment in a shard.",
    )


def _cut(table: pd.DataFrame) -> pd.DataFrame:
    """The first MAX_BARS rows, the last of them the sum of all that follow."""
    if len(table) <= MAX_BARS:
        return table
    others = len(table) - MAX_BARS + 1
    rest = table.iloc[-others:].sum().to_frame(f"{others} other countries").T
    return pd.concat([table.iloc[:-others], rest])


def _one_decimal(amount: float, unit: str) -> str:
    """An amount in the unit of the axis: its neighbours are to be compared with it."""
    if 0 < amount < 0.05:
        return f"<0.1 {unit}"
    if amount == 0 or amount >= 99.95:
        return f"{amount:,.0f} {unit}"
    return f"{amount:.1f} {unit}"


def rejects(corpus: Corpus) -> str:
    """Rejected segments and alignment files by reason, stacked by country."""
    tables = {unit: corpus.by_reason(unit, "rejected") for unit in ("segment", "file")}
    sums = sum(table.sum() for table in tables.values())
    weights = sums.sort_values(ascending=False, kind="stable")
    ranked = list(weights.index[weights > 0])
    shown = ranked
    if len(ranked) > len(PALETTE):
        shown = ranked[: len(PALETTE) - 1]
    others = ranked[len(shown) :]
    legend = list(zip(shown, PALETTE, strict=False))

    panels = []
    parts = []
    for unit, noun in (("segment", "segments"), ("file", "alignment files")):
        ledger = corpus.ledger(unit)
        found = human_count(ledger.rows_in)
        parts.append(f"{human_count(ledger.rows_rejected)} of {found} {noun}")
        bars = tables[unit]
        series = [(colour, list(bars[name])) for name, colour in legend]
        series.append((REST, list(bars[others].sum(axis=1))))
        panel = Panel(
            f"{noun.capitalize()} rejected (share of {found} found)",
            list(bars.index),
            series,
            notes=[_count_and_share(count, ledger.rows_in) for count in bars.sum(axis=1)],
            whole=True,
        )
        panels.append(panel)
    if others:
        legend.append((f"{len(others)} other countries", REST))
    return figures.bar_chart(
        "Rejects by reason and country",
        ", ".join(parts),
        panels,
        legend,
        nothing="Nothing was rejected.",
    )


def _count_and_share(count: int, whole: int) -> str:
    return f"{human_count(count)} ({human_share(count, whole)})"


class _Histogram(NamedTuple):
    """A histogram: column of the rates, unit, and how its axis begins and is divided."""

    name: str
    column: str
    unit: str
    from_zero: bool
    finest: float  # narrowest bin, in the unit


_HISTOGRAMS = (
    _Histogram("Duration", "duration_seconds", "s", from_zero=False, finest=0.05),
    _Histogram("CER", "cer", "%", from_zero=True, finest=0.5),
    _Histogram("WER", "wer", "%", from_zero=True, finest=0.5),
)


def distributions(rates: pd.DataFrame) -> str:
    """Histograms of duration, CER and WER of all segments, stacked by whether the segment is in a
    shard."""
    in_shard = rates["in_shard"].to_numpy()
    count = int(in_shard.sum())
    lost = human_count(len(rates) - count)
    legend = [
        (f"in shards ({human_count(count)})", IN_SHARDS),
        (f"rejected when shards were made ({lost})", REJECTED),
    ]
    title = "Duration and error rates of all segments in the manifest"
    with figures.style():
        sheet = Sheet(2.75, title, "A bar behind a gap holds all that is beyond the axis", legend)
        gap = 0.77
        left = 0.8
        width = (figures.WIDTH - left - 0.2 - 2 * gap) / 3
        for histogram in _HISTOGRAMS:
            axes = sheet.axes(left, sheet.top + 0.3, width, 2.0)
            axes.set_xlabel(f"{histogram.name} ({histogram.unit})")
            values = rates[histogram.column].to_numpy(np.float64)
            if histogram.unit == "%":
                values *= 100
            valid = np.isfinite(values)
            _draw(axes, histogram, values[valid], in_shard[valid])
            left += width + gap
        sheet.figure.axes[0].set_ylabel("Segments")
        return figures.svg(sheet.figure, title, "; ".join(name for name, _ in legend))


def _draw(axes: Axes, histogram: _Histogram, values: np.ndarray, in_shard: np.ndarray) -> None:
    figures.count_axis(axes.yaxis)
    axes.grid(axis="y")
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", labelcolor=figures.MUTED)
    unit = histogram.unit
    title = "no values"
    if values.size:
        title = f"median {np.median(values):.1f} {unit}, mean {values.mean():.1f} {unit}"
    axes.set_title(title, loc="left", fontsize=9, color=figures.MUTED, pad=8)
    if not values.size:
        axes.set(xticks=[], yticks=[])
        return

    # The bar after a gap holds what lies beyond the last edge.
    edges, beyond = histogram_edges(values, histogram.from_zero, histogram.finest)
    step = edges[1] - edges[0]
    last = edges[-1]
    bins = np.clip(np.ceil((values - edges[0]) / step - 1e-4) - 1, 0, edges.size - 1).astype(int)
    centres = np.append(edges[:-1] + step / 2, last + 1.5 * step)
    bottom = np.zeros(edges.size)
    for rows, colour in ((in_shard, IN_SHARDS), (~in_shard, REJECTED)):
        counts = np.bincount(bins[rows], minlength=edges.size)
        axes.bar(
            centres,
            counts,
            step,
            bottom,
            color=colour,
            edgecolor=figures.PAPER,
            linewidth=0.4,
        )
        bottom += counts
    axes.set_ylim(0, max(bottom.max() * 1.05, 1))
    _name_ticks(axes, edges, beyond)


def _name_ticks(axes: Axes, edges: np.ndarray, beyond: bool) -> None:
    """Round numbers below the axis, and below the bar of what lies `beyond`."""
    first = edges[0]
    last = edges[-1]
    step = edges[1] - first
    tick = figures.nice_step(last - first, 5)
    numbers = np.arange(np.ceil(first / tick - 1e-9), np.floor(last / tick + 1e-9) + 1)
    ticks = numbers * tick + 0.0
    if not beyond:
        axes.set_xlim(first, last)
        axes.set_xticks(ticks, [f"{value:,.10g}" for value in ticks])
        return
    ticks = ticks[ticks < last - 0.12 * (last - first)]
    names = [f"{value:,.10g}" for value in ticks]
    axes.set_xlim(first, last + 2.5 * step)
    axes.set_xticks([*ticks, last + 1.5 * step], [*names, f">{last:,.10g}"])


def histogram_edges(values: np.ndarray, from_zero: bool, finest: float) -> tuple[np.ndarray, bool]:
    """Round, even edges with at most 40 bins over 99.5 % of the values, and whether values lie
    beyond.

    Bins hold their upper edge (the first holds both), so that a limit that is allowed parts the
    bins. No bin is narrower than `finest`.
    """
    low = 0.0 if from_zero else float(values.min())
    high = float(np.quantile(values, 0.995))
    highest = float(values.max())
    if highest - low <= 1.25 * (high - low):
        high = highest
    step = max(figures.nice_step(high - low, 40), finest)
    first = round(np.floor(low / step + 1e-4))
    last = max(round(np.ceil(high / step - 1e-4)), first + 4)
    if highest > (last + 1e-4) * step:
        # The last edge is named on the axis, so a round one.
        tick = figures.nice_step((last - first) * step, 5)
        last = round(np.ceil(last * step / tick - 1e-4) * tick / step)
    return np.arange(first, last + 1) * step, bool(highest > (last + 1e-4) * step)
