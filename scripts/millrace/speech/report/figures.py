"""The figures of the corpus report, as SVG: hours, distributions, rejects."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd

from millrace.common.report import figures
from millrace.common.report.figures import (
    PALETTE,
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

IN_SHARDS = PALETTE[0]
REJECTED = PALETTE[5]
_BINS = 40


def hours(corpus: Corpus) -> str:
    """Hours in shards per country, stacked by split, the largest country first."""
    table = corpus.hours
    total = table.to_numpy().sum()
    order = table.sum(axis=1).sort_values(ascending=False, kind="stable").index
    bars = table.loc[order]

    legend = []
    series = []
    for split, colour in zip(SPLITS, PALETTE, strict=False):
        legend.append((f"{split} {human_share(table[split].sum(), total)}", colour))
        series.append((colour, list(bars[split])))
    notes = [human_hours(amount) for amount in bars.sum(axis=1)]
    noun = "country" if len(table) == 1 else "countries"
    return figures.bar_chart(
        "Hours in shards per country and split",
        f"{human_hours(total)} in {len(table)} {noun}",
        [Panel("Audio in shards (hours)", list(bars.index), series, notes)],
        legend,
        nothing="No country has a segment in a shard.",
    )


def rejects(corpus: Corpus) -> str:
    """Rejected segments and alignment files by reason."""
    panels = []
    parts = []
    for unit, noun in (("segment", "segments"), ("file", "alignment files")):
        ledger = corpus.ledger(unit)
        found = human_count(ledger.rows_in)
        parts.append(f"{human_count(ledger.rows_rejected)} of {found} {noun}")
        counts = corpus.by_reason(unit, "rejected").sum(axis=1)
        notes = [f"{human_count(count)} ({human_share(count, ledger.rows_in)})" for count in counts]
        title = f"{noun.capitalize()} rejected (share of {found} found)"
        series = [(REJECTED, list(counts))]
        panels.append(Panel(title, list(counts.index), series, notes, whole=True))
    return figures.bar_chart(
        "Rejects by reason", ", ".join(parts), panels, nothing="Nothing was rejected."
    )


class _Histogram(NamedTuple):
    name: str
    column: str
    unit: str
    scale: float  # from the rates to the unit


_HISTOGRAMS = (
    _Histogram("Duration", "duration_seconds", "s", 1.0),
    _Histogram("CER", "cer", "%", 100.0),
    _Histogram("WER", "wer", "%", 100.0),
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
        sheet = Sheet(2.75, title, "The last bar holds all that is beyond the axis", legend)
        gap = 0.77
        left = 0.8
        width = (figures.WIDTH - left - 0.2 - 2 * gap) / 3
        for histogram in _HISTOGRAMS:
            axes = sheet.axes(left, sheet.top + 0.3, width, 2.0)
            axes.set_xlabel(f"{histogram.name} ({histogram.unit})")
            values = rates[histogram.column].to_numpy(np.float64) * histogram.scale
            valid = np.isfinite(values)
            _draw(axes, values[valid], in_shard[valid], histogram.unit)
            left += width + gap
        sheet.figure.axes[0].set_ylabel("Segments")
        return figures.svg(sheet.figure, title, "; ".join(name for name, _ in legend))


def _draw(axes: Axes, values: np.ndarray, in_shard: np.ndarray, unit: str) -> None:
    figures.count_axis(axes.yaxis)
    axes.grid(axis="y")
    title = "no values"
    if values.size:
        title = f"median {np.median(values):.1f} {unit}, mean {values.mean():.1f} {unit}"
    axes.set_title(title, loc="left", fontsize=9, color=figures.MUTED, pad=8)
    if not values.size:
        axes.set(xticks=[], yticks=[])
        return

    last = float(np.quantile(values, 0.995)) or 1.0
    edges = np.linspace(0, last, _BINS + 1)
    shown = np.clip(values, 0, last)
    bottom = np.zeros(_BINS)
    for rows, colour in ((in_shard, IN_SHARDS), (~in_shard, REJECTED)):
        counts, _ = np.histogram(shown[rows], edges)
        axes.bar(edges[:-1], counts, last / _BINS, bottom, align="edge", color=colour)
        bottom += counts
