"""Pages for people: a training run, and what readers were measured to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from millrace.common import jsonl
from millrace.common.report import figures, page
from millrace.common.report.figures import PALETTE, REST, Panel
from millrace.common.report.page import Number, Table
from millrace.image.producer.quality import Spread

_TEMPLATE = Path(__file__).with_name("image.html.j2")
# The curves of a run's page and their colours in PALETTE.
_LEGEND = {"training loss": 0, "val top-1 (%)": 2, "val top-5 (%)": 4, "wait for data (% of the time)": 1}


def training_page(run: Path, summary: Mapping[str, Any]) -> str:
    """Loss, accuracies and waits of the run in a folder; `summary` is its metrics.json."""
    rows = [row for _, row, _ in jsonl.lines(run / "metrics.jsonl")]
    train = [row for row in rows if row["event"] == "train" and row["loss"] is not None]
    evals = [row for row in rows if row["event"] == "eval"]
    waits = [100 * row["time_share"]["data_wait"] for row in train]
    seconds = [row["seconds"] for row in train]
    waited = figures.human_share(np.dot(waits, seconds) / 100, sum(seconds))
    steps, ends = [row["step"] for row in train], [row["step"] for row in evals]
    accuracies = {2: [row["metrics"]["acc1"] for row in evals], 4: [row["metrics"]["acc5"] for row in evals]}
    panels = [(steps, {0: [row["loss"] for row in train]}), (ends, accuracies), (steps, {1: waits})]
    title, subtitle = f"Training of {summary['arch']}", f"{waited} of the time waited for data"
    with figures.style():
        legend = [(name, PALETTE[colour]) for name, colour in _LEGEND.items()]
        sheet = figures.Sheet(2.7, title, subtitle, legend)
        for place, (x, curves) in enumerate(panels):
            axes = sheet.axes(0.55 + 2.95 * place, sheet.top + 0.1, 2.4, 2.0)
            for colour, y in curves.items():
                axes.plot(x, y, color=PALETTE[colour], marker="o" if len(x) < 30 else "", markersize=3)
            axes.set_ylim(0, 105 if place == 1 else None)
            axes.set_xlabel("step")
            axes.grid(axis="y")
            figures.count_axis(axes.xaxis, 4)
        svg = figures.svg(sheet.figure, title, subtitle)
    columns = ["Epoch", "Step", "Loss on val", "Top-1 (%)", "Top-5 (%)"]
    cells = []
    for epoch, row in enumerate(evals, summary["epochs"] - len(evals)):
        values = row["step"], *(row["metrics"][name] for name in ("loss", "acc1", "acc5"))
        cells.append([str(epoch), *map(_number, values)])
    tables = [Table("Validation after each epoch", columns, cells)]
    lead = f"{summary['samples']:,} images, {summary['optimizer_steps']:,} steps."
    if summary["spread"]:
        spread = Spread(**summary["spread"])
        lead += f" Expected of {spread.line(summary['samples'] // summary['epochs'])}."
    tiles = [("Best top-1", figures.human_share(summary["best"]["acc1"] / 100)), ("Waited for data", waited)]
    tiles.append(("Epochs", _number(summary["epochs"])))
    return page.render(_TEMPLATE, title="Image training", lead=lead, tiles=tiles, svgs=[svg], tables=tables)


def readers_page(rows: Sequence[Mapping[str, Any]], mixing: Sequence[Mapping[str, Any]]) -> str:
    """The rows of `readers.measure` and of `readers.shuffle_quality`."""
    names = ["{reader}, {workers} workers, {state}".format(**row) for row in rows]
    rates = [row["images_per_second"] for row in rows]
    colours = [REST if row["state"] == "cold" else PALETTE[0] for row in rows]
    panel = Panel("images/s", names, [(colours, rates)], [f"{rate:,.0f}" for rate in rates])
    legend = [("warm page cache", PALETTE[0]), ("cold", REST)]
    svgs = [figures.bar_chart("Reading images", "decoded pixels, without crops", [panel], legend)]
    columns = ["Reader", "Page cache", "Workers", "Images", "Images/s", "CPU s per 1,000", "Bytes per image"]
    tables = [Table("Readers; bytes per image are those on disk", columns, _cells(rows))]
    if mixing:
        bars, orders = [row["label_run_entropy"] for row in mixing], [row["order"] for row in mixing]
        panel = Panel("bits", orders, [(PALETTE[2], bars)], [f"{bar:.2f}" for bar in bars])
        svgs.append(figures.bar_chart("Shuffle quality", "label-run entropy of an epoch", [panel]))
        columns = ["Order", "Label-run entropy (bits)", "Distance of neighbours (share of the epoch)"]
        tables.append(Table("Shuffle quality", columns, _cells(mixing)))
    lead = "CPU is that of all processes; warm rates are medians."
    return page.render(_TEMPLATE, title="Image readers", lead=lead, tiles=[], svgs=svgs, tables=tables)


def _cells(rows: Sequence[Mapping[str, Any]]) -> list[list]:
    return [[each if isinstance(each, str) else _number(each) for each in row.values()] for row in rows]


def _number(value: float) -> Number:
    return Number(value, f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}")
