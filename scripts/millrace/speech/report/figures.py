"""The figures of the corpus report, as SVG: hours, distributions, rejects."""

from __future__ import annotations

from typing import Any

import numpy as np

from millrace.common.report import figures
from millrace.common.report.figures import PALETTE, REST, Sheet, human_count, human_hours, human_share
from millrace.speech.corpus.splits import SPLITS
from millrace.speech.report.corpus import Corpus, Rates

WIDTH = 9.0
# Bars of a panel; what is beyond is summed up in one bar, and stands in the tables.
MOST_BARS = 60
_PITCH = 0.27
IN_SHARDS, REJECTED = PALETTE[0], PALETTE[5]


def hours(corpus: Corpus) -> str:
    """Hours in shards per country, stacked by split, the largest country first."""
    ranked = sorted(corpus.countries, key=lambda country: -country.hours)
    bars = [(country.name, [country.hours_of(split) for split in SPLITS]) for country in ranked]
    if len(bars) > MOST_BARS:
        others = [
            sum(column) for column in zip(*(values for _, values in bars[MOST_BARS - 1 :]), strict=True)
        ]
        bars = [*bars[: MOST_BARS - 1], (f"{len(ranked) - MOST_BARS + 1} other countries", others)]
    in_minutes = max((sum(values) for _, values in bars), default=0) < 2
    scale, unit = (60, "minutes") if in_minutes else (1, "hours")
    shares = [f"{split} {human_share(corpus.hours_of(split), corpus.hours)}" for split in SPLITS]
    legend = list(zip(shares, PALETTE, strict=False))
    series = [
        (colour, [values[place] * scale for _, values in bars]) for place, (_, colour) in enumerate(legend)
    ]
    title = "Hours in shards per country and split"
    noun = "country" if len(ranked) == 1 else "countries"
    subtitle = f"{human_hours(corpus.hours)} in {len(ranked)} {noun}"
    totals = [_one_decimal(sum(values) * scale, unit) for _, values in bars]
    panel = Panel(f"Audio in shards ({unit})", [name for name, _ in bars], series, totals, False)
    return _bars(title, subtitle, legend, [panel], "No country has a segment in a shard.")


def _one_decimal(amount: float, unit: str) -> str:
    """An amount in the unit of the axis: its neighbours are to be compared with it."""
    short = "min" if unit == "minutes" else "h"
    if 0 < amount < 0.05:
        return f"<0.1 {short}"
    return f"{amount:,.0f} {short}" if amount == 0 or amount >= 99.95 else f"{amount:.1f} {short}"


def rejects(corpus: Corpus) -> str:
    """Rejected segments and alignment files by reason, stacked by country."""
    panels, weights = [], dict.fromkeys((country.name for country in corpus.countries), 0)
    found = {unit: corpus.by_reason(unit, "rejected") for unit in ("segment", "file")}
    for reasons in found.values():
        for counts in reasons.values():
            for name, count in counts.items():
                weights[name] += count
    ranked = [name for name in sorted(weights, key=lambda name: -weights[name]) if weights[name]]
    shown = ranked if len(ranked) <= len(PALETTE) else ranked[: len(PALETTE) - 1]
    legend = list(zip(shown, PALETTE, strict=False))
    if rest := ranked[len(shown) :]:
        legend.append((f"{len(rest)} other countries", REST))
    for unit, reasons in found.items():
        if not reasons:
            continue
        bars = list(reasons.items())
        if len(bars) > MOST_BARS:
            others = {name: sum(c.get(name, 0) for _, c in bars[MOST_BARS - 1 :]) for name in ranked}
            bars = [*bars[: MOST_BARS - 1], (f"{len(reasons) - MOST_BARS + 1} other reasons", others)]
        series = [
            (colour, [counts.get(name, 0) for _, counts in bars]) for name, colour in legend[: len(shown)]
        ]
        if rest:
            series.append((REST, [sum(counts.get(name, 0) for name in rest) for _, counts in bars]))
        of = corpus.ledger(unit).rows_in
        sums = [sum(counts.values()) for _, counts in bars]
        totals = [f"{human_count(count)} ({human_share(count, of)})" for count in sums]
        label = "Segments rejected" if unit == "segment" else "Alignment files rejected"
        panels.append(
            Panel(f"{label} (share of {human_count(of)} found)", [r for r, _ in bars], series, totals, True)
        )
    segments, files = corpus.ledger("segment"), corpus.ledger("file")
    subtitle = (
        f"{human_count(segments.rows_rejected)} of {human_count(segments.rows_in)} segments, "
        f"{human_count(files.rows_rejected)} of {human_count(files.rows_in)} alignment files"
    )
    return _bars("Rejects by reason and country", subtitle, legend, panels, "Nothing was rejected.")


class Panel:
    """One set of horizontal bars: axis label, bar names, series of (colour, lengths), texts at the ends."""

    def __init__(
        self,
        label: str,
        names: list[str],
        series: list[tuple[str, list[float]]],
        totals: list[str],
        whole: bool,
    ) -> None:
        self.label, self.series, self.totals, self.whole = label, series, totals, whole
        self.names = [figures.shorten(name, 2.6) for name in names]

    @property
    def height(self) -> float:
        """Inches that the bars take."""
        return _PITCH * max(len(self.names), 1)


def _bars(title: str, subtitle: str, legend: list, panels: list[Panel], nothing: str) -> str:
    panels = [panel for panel in panels if panel.names]
    with figures.style():
        if not panels:
            sheet = Sheet.new(WIDTH, 1.1)
            sheet.heading(title, subtitle)
            sheet.text(0.15, 0.88, nothing)
            return figures.svg(sheet.figure, title, f"{subtitle}. {nothing}")
        top = 0.72 + figures.legend_height(legend, WIDTH - 0.3)
        left = 0.3 + max(figures.text_width(name) for panel in panels for name in panel.names)
        right = 0.25 + max(figures.text_width(total) for panel in panels for total in panel.totals)
        sheet = Sheet.new(WIDTH, top + sum(panel.height + 0.65 for panel in panels))
        sheet.heading(title, subtitle)
        sheet.legend(0.15, 0.66, legend)
        for panel in panels:
            axes = sheet.axes(left, top + 0.08, WIDTH - left - right, panel.height)
            figures.stacked_bars(axes, panel.series, panel.names, panel.totals)
            figures.count_axis(axes.xaxis, whole=panel.whole)
            axes.set_xlabel(panel.label, loc="left")
            top += panel.height + 0.65
        return figures.svg(sheet.figure, title, subtitle)


def distributions(rates: Rates) -> str:
    """Histograms of duration, CER and WER, stacked by whether the segment is in a shard."""
    kept = int(rates.in_shard.sum())
    title = "Duration and error rates of all segments in the manifest"
    legend = [(f"in shards ({human_count(kept)})", IN_SHARDS)]
    legend += [(f"rejected when shards were made ({human_count(rates.in_shard.size - kept)})", REJECTED)]
    panels = (
        ("Duration (s)", rates.duration, "s", 0.05),
        ("CER (%)", rates.cer * 100, "%", 0.5),
        ("WER (%)", rates.wer * 100, "%", 0.5),
    )
    with figures.style():
        sheet = Sheet.new(WIDTH, 3.75)
        sheet.heading(title)
        sheet.legend(0.15, 0.48, legend)
        gap, left = 0.42, 0.8
        width = (WIDTH - left - 0.2 - 2 * gap - 2 * 0.35) / 3
        for place, (label, values, unit, finest) in enumerate(panels):
            axes = sheet.axes(left + place * (width + gap + 0.35), 1.15, width, 2.0)
            _histogram(axes, label, values, rates.in_shard, unit, finest)
            if place == 0:
                axes.set_ylabel("Segments")
        return figures.svg(sheet.figure, title, "; ".join(name for name, _ in legend))


def _histogram(
    axes: Any, label: str, values: np.ndarray, in_shard: np.ndarray, unit: str, finest: float
) -> None:
    figures.count_axis(axes.yaxis)
    axes.set_xlabel(label)
    axes.grid(axis="y")
    axes.spines["left"].set_visible(False)
    valid = np.isfinite(values)
    values, in_shard = values[valid].astype(np.float64), in_shard[valid]
    note = (
        f"median {np.median(values):.1f} {unit}, mean {values.mean():.1f} {unit}"
        if values.size
        else "no values"
    )
    axes.set_title(note, loc="left", fontsize=9, color=figures.MUTED, pad=8)
    if not values.size:
        axes.set_xticks([])
        axes.set_yticks([])
        return
    edges, beyond = histogram_edges(values, unit == "%", finest)
    bins = np.clip(np.ceil((values - edges[0]) / (edges[1] - edges[0]) - 1e-4) - 1, 0, edges.size - 1).astype(
        int
    )
    # The bar after a gap holds what lies beyond the last edge.
    step = edges[1] - edges[0]
    centres = np.append(edges[:-1] + step / 2, edges[-1] + 1.5 * step)
    kept = np.bincount(bins[in_shard], minlength=edges.size)
    lost = np.bincount(bins[~in_shard], minlength=edges.size)
    shape = {"width": step, "edgecolor": figures.PAPER, "linewidth": 0.4}
    axes.bar(centres, kept, color=IN_SHARDS, **shape)
    axes.bar(centres, lost, bottom=kept, color=REJECTED, **shape)
    axes.set_xlim(edges[0], edges[-1] + (2.5 * step if beyond else 0))
    axes.set_ylim(0, max((kept + lost).max() * 1.05, 1))
    tick = figures.nice_step(edges[-1] - edges[0], 5)
    ticks = np.arange(np.ceil(edges[0] / tick - 1e-9), np.floor(edges[-1] / tick + 1e-9) + 1) * tick + 0.0
    names = [f"{value:,.10g}" for value in ticks]
    if beyond:
        last = edges[-1] + 1.5 * step
        near = ticks < edges[-1] - 0.12 * (edges[-1] - edges[0])
        ticks, names = (
            np.append(ticks[near], last),
            [name for name, ok in zip(names, near, strict=True) if ok],
        )
        names.append(f">{edges[-1]:,.10g}")
    axes.set_xticks(ticks, names)
    axes.tick_params(axis="y", labelcolor=figures.MUTED)


def histogram_edges(values: np.ndarray, from_zero: bool, finest: float) -> tuple[np.ndarray, bool]:
    """Round, even edges with at most 40 bins over 99.5 % of the values, and whether values lie beyond the
    last edge.

    Bins hold their upper edge, so that a limit that is itself allowed parts the bins; the first holds both
    its edges.
    """
    low = 0.0 if from_zero else float(values.min())
    high, most = float(np.quantile(values, 0.995)), float(values.max())
    if most - low <= 1.25 * (high - low):
        high = most
    step = max(figures.nice_step(high - low, 40), finest)
    first = round(np.floor(low / step + 1e-4))
    last = max(round(np.ceil(high / step - 1e-4)), first + 4)
    if most > (last + 1e-4) * step:
        # The last edge is named on the axis, so a round one.
        tick = figures.nice_step((last - first) * step, 5)
        last = round(np.ceil(last * step / tick - 1e-4) * tick / step)
    return np.arange(first, last + 1) * step, bool(most > (last + 1e-4) * step)
