"""The figures of the corpus report, as SVG: hours, distributions."""

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
    """Histograms of duration, CER and WER of the segments in shards."""
    title = "Duration and error rates of the segments in shards"
    subtitle = f"Segments: {human_count(len(rates))}; the last bar holds all beyond the axis"
    with figures.style():
        sheet = Sheet(2.75, title, subtitle)
        gap = 0.77
        left = 0.8
        width = (figures.WIDTH - left - 0.2 - 2 * gap) / 3
        for histogram in _HISTOGRAMS:
            axes = sheet.axes(left, sheet.top + 0.3, width, 2.0)
            axes.set_xlabel(f"{histogram.name} ({histogram.unit})")
            values = rates[histogram.column].to_numpy(np.float64) * histogram.scale
            _draw(axes, values[np.isfinite(values)], histogram.unit)
            left += width + gap
        sheet.figure.axes[0].set_ylabel("Segments")
        return figures.svg(sheet.figure, title, subtitle)


def _draw(axes: Axes, values: np.ndarray, unit: str) -> None:
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
    counts, edges = np.histogram(np.clip(values, 0, last), _BINS, (0, last))
    axes.bar(edges[:-1], counts, last / _BINS, align="edge", color=PALETTE[0])
