"""The figures of the corpus report, as SVG: hours, distributions, rejects."""

from __future__ import annotations

from typing import Any

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

# Bars of a panel; what is beyond is summed up in one bar, and stands in the tables.
MAX_BARS = 60
IN_SHARDS, REJECTED = PALETTE[0], PALETTE[5]


def hours(corpus: Corpus) -> str:
    """Hours in shards per country, stacked by split, the largest country first."""
    table = corpus.hours
    total, splits = table.to_numpy().sum(), table.sum()
    order = table.sum(axis=1).sort_values(ascending=False, kind="stable").index
    bars = _cut(table.loc[order], "countries")
    in_minutes = bars.sum(axis=1).max() < 2
    bars *= 60 if in_minutes else 1
    colours = list(zip(SPLITS, PALETTE, strict=False))
    legend = [(f"{split} {human_share(splits[split], total)}", colour) for split, colour in colours]
    series = [(colour, list(bars[split])) for split, colour in colours]
    notes = [_one_decimal(amount, "min" if in_minutes else "h") for amount in bars.sum(axis=1)]
    label = f"Audio in shards ({'minutes' if in_minutes else 'hours'})"
    noun = "country" if len(table) == 1 else "countries"
    return figures.bar_chart(
        "Hours in shards per country and split",
        f"{human_hours(total)} in {len(table)} {noun}",
        [Panel(label, list(bars.index), series, notes)],
        legend,
        nothing="No country has a segment in a shard.",
    )


def _cut(table: pd.DataFrame, noun: str) -> pd.DataFrame:
    """The first MAX_BARS rows, the last of them the sum of all that follow."""
    if len(table) <= MAX_BARS:
        return table
    rest = table.iloc[MAX_BARS - 1 :].sum().to_frame(f"{len(table) - MAX_BARS + 1} other {noun}").T
    return pd.concat([table.iloc[: MAX_BARS - 1], rest])


def _one_decimal(amount: float, unit: str) -> str:
    """An amount in the unit of the axis: its neighbours are to be compared with it."""
    if 0 < amount < 0.05:
        return f"<0.1 {unit}"
    return f"{amount:,.0f} {unit}" if amount == 0 or amount >= 99.95 else f"{amount:.1f} {unit}"


def rejects(corpus: Corpus) -> str:
    """Rejected segments and alignment files by reason, stacked by country."""
    tables = {unit: corpus.by_reason(unit, "rejected") for unit in ("segment", "file")}
    weights = sum(table.sum() for table in tables.values()).sort_values(
        ascending=False, kind="stable"
    )
    ranked = list(weights.index[weights > 0])
    shown = ranked if len(ranked) <= len(PALETTE) else ranked[: len(PALETTE) - 1]
    legend, others = list(zip(shown, PALETTE, strict=False)), ranked[len(shown) :]
    if others:
        legend.append((f"{len(others)} other countries", REST))

    panels, parts = [], []
    for unit, noun in (("segment", "segments"), ("file", "alignment files")):
        ledger, bars = corpus.ledger(unit), _cut(tables[unit], "reasons")
        parts.append(f"{human_count(ledger.rows_rejected)} of {human_count(ledger.rows_in)} {noun}")
        series = [(colour, list(bars[name])) for name, colour in legend[: len(shown)]]
        series.append((REST, list(bars[others].sum(axis=1))))
        sums = bars.sum(axis=1)
        notes = [f"{human_count(count)} ({human_share(count, ledger.rows_in)})" for count in sums]
        label = f"{noun.capitalize()} rejected (share of {human_count(ledger.rows_in)} found)"
        panels.append(Panel(label, list(bars.index), series, notes, whole=True))
    return figures.bar_chart(
        "Rejects by reason and country",
        ", ".join(parts),
        panels,
        legend,
        nothing="Nothing was rejected.",
    )


def distributions(rates: pd.DataFrame) -> str:
    """Histograms of duration, CER and WER of all segments, stacked by whether the segment is in a
    shard."""
    in_shard = rates["in_shard"].to_numpy()
    count = int(in_shard.sum())
    title = "Duration and error rates of all segments in the manifest"
    lost = f"rejected when shards were made ({human_count(len(rates) - count)})"
    legend = [(f"in shards ({human_count(count)})", IN_SHARDS), (lost, REJECTED)]
    with figures.style():
        sheet = Sheet(2.75, title, "A bar behind a gap holds all that is beyond the axis", legend)
        gap, left = 0.77, 0.8
        width = (figures.WIDTH - left - 0.2 - 2 * gap) / 3
        for place, (name, unit, column) in enumerate(
            (("Duration", "s", "duration_seconds"), ("CER", "%", "cer"), ("WER", "%", "wer"))
        ):
            axes = sheet.axes(left + place * (width + gap), sheet.top + 0.3, width, 2.0)
            axes.set_xlabel(f"{name} ({unit})")
            axes.set_ylabel("Segments" if place == 0 else "")
            values = rates[column].to_numpy(np.float64) * (100 if unit == "%" else 1)
            valid = np.isfinite(values)
            _histogram(axes, values[valid], in_shard[valid], unit)
        return figures.svg(sheet.figure, title, "; ".join(name for name, _ in legend))


def _histogram(axes: Any, values: np.ndarray, in_shard: np.ndarray, unit: str) -> None:
    figures.count_axis(axes.yaxis)
    axes.grid(axis="y")
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", labelcolor=figures.MUTED)
    font = {"loc": "left", "fontsize": 9, "color": figures.MUTED, "pad": 8}
    if not values.size:
        axes.set_title("no values", **font)
        axes.set(xticks=[], yticks=[])
        return
    axes.set_title(
        f"median {np.median(values):.1f} {unit}, mean {values.mean():.1f} {unit}", **font
    )

    # The bar after a gap holds what lies beyond the last edge.
    edges, beyond = histogram_edges(values, *((True, 0.5) if unit == "%" else (False, 0.05)))
    step, last = edges[1] - edges[0], edges[-1]
    bins = np.clip(np.ceil((values - edges[0]) / step - 1e-4) - 1, 0, edges.size - 1).astype(int)
    centres = np.append(edges[:-1] + step / 2, last + 1.5 * step)
    bottom = np.zeros(edges.size)
    for rows, colour in ((in_shard, IN_SHARDS), (~in_shard, REJECTED)):
        counts = np.bincount(bins[rows], minlength=edges.size)
        axes.bar(
            centres, counts, step, bottom, color=colour, edgecolor=figures.PAPER, linewidth=0.4
        )
        bottom += counts
    axes.set_xlim(edges[0], last + (2.5 * step if beyond else 0))
    axes.set_ylim(0, max(bottom.max() * 1.05, 1))

    tick = figures.nice_step(last - edges[0], 5)
    ticks = (
        np.arange(np.ceil(edges[0] / tick - 1e-9), np.floor(last / tick + 1e-9) + 1) * tick + 0.0
    )
    if beyond:
        ticks = ticks[ticks < last - 0.12 * (last - edges[0])]
    names = [f"{value:,.10g}" for value in ticks] + ([f">{last:,.10g}"] if beyond else [])
    axes.set_xticks([*ticks, last + 1.5 * step] if beyond else ticks, names)


def histogram_edges(values: np.ndarray, from_zero: bool, finest: float) -> tuple[np.ndarray, bool]:
    """Round, even edges with at most 40 bins over 99.5 % of the values, and whether values lie
    beyond.

    Bins hold their upper edge (the first holds both), so that a limit that is allowed parts the
    bins. No bin is narrower than `finest`.
    """
    low = 0.0 if from_zero else float(values.min())
    high, highest = float(np.quantile(values, 0.995)), float(values.max())
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
