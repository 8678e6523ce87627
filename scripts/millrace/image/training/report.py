"""The page of a training run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from millrace.common import jsonl
from millrace.common.report import figures, page
from millrace.common.report.figures import PALETTE, Curves
from millrace.common.report.page import Cell, Number, Table

_TEMPLATE = Path(__file__).with_name("image.html.j2")


def training_page(run: Path, summary: Mapping[str, Any], leaks: Sequence[str] = ()) -> str:
    """Loss, accuracies and waits of the run in a folder; `summary` is its metrics.json, `leaks`
    says which of its images are also held out."""
    train, evals = _events(run / "metrics.jsonl")
    waited = _waited(train)
    subtitle = f"{waited} of the time waited for data; top-5 is dashed"
    svg = figures.line_chart(f"Training of {summary['arch']}", subtitle, _curves(train, evals))

    lead = f"{summary['samples']:,} images, {summary['optimizer_steps']:,} steps."
    for leak in leaks:
        lead += f" {leak}."
    tiles: list[tuple[str, Cell]] = [
        ("Best top-1", figures.human_share(summary["best"]["acc1"] / 100)),
        ("Waited for data", waited),
        ("Epochs", _number(summary["epochs"])),
    ]
    return page.render(
        _TEMPLATE,
        title="Image training",
        lead=lead,
        tiles=tiles,
        svgs=[svg],
        tables=[_validations(evals, summary["epochs"])],
    )


def _events(log: Path) -> tuple[list[dict], list[dict]]:
    """The lines of training steps and those of evaluations."""
    rows = jsonl.whole_lines(log)
    train = [row for row in rows if row["event"] == "train" and row["loss"] is not None]
    evals = [row for row in rows if row["event"] == "eval"]
    return train, evals


def _waited(train: Sequence[Mapping]) -> str:
    """The share of the time in which training waited for data."""
    seconds = [row["seconds"] for row in train]
    percents = [percent for _, percent in _waits(train)]
    waited = np.dot(percents, seconds) / 100
    return figures.human_share(waited, sum(seconds))


def _waits(train: Sequence[Mapping]) -> list[tuple[int, float]]:
    """The percent of the time that training waited for data, by step."""
    return [(row["step"], 100 * row["time_share"]["data_wait"]) for row in train]


def _curves(train: Sequence[Mapping], evals: Sequence[Mapping]) -> list[Curves]:
    """Loss, accuracies and waits by step."""
    losses = [(row["step"], row["loss"]) for row in train]
    top1 = [(row["step"], row["metrics"]["acc1"]) for row in evals]
    top5 = [(row["step"], row["metrics"]["acc5"]) for row in evals]
    accuracies = [
        (PALETTE[0], "-", top1),
        (PALETTE[1], "--", top5),
    ]
    return [
        Curves("Training loss", [(PALETTE[0], "-", losses)]),
        Curves("Top-1 and top-5 of val (%)", accuracies),
        Curves("Wait for data (% of the time)", [(PALETTE[0], "-", _waits(train))]),
    ]


def _validations(evals: Sequence[Mapping], epochs: int) -> Table:
    """The figures on val after each epoch, the last of which is `epochs` - 1."""
    columns = ["Epoch", "Step", "Loss on val", "Top-1 (%)", "Top-5 (%)"]
    cells: list[list[Cell]] = []
    for epoch, row in enumerate(evals, epochs - len(evals)):
        metrics = row["metrics"]
        values = [row["step"], metrics["loss"], metrics["acc1"], metrics["acc5"]]
        cells.append([str(epoch), *map(_number, values)])
    return Table("Validation after each epoch", columns, cells)


def _number(value: float) -> Number:
    is_whole = value >= 100 or value == int(value)
    text = f"{value:,.0f}" if is_whole else f"{value:.3g}"
    return Number(value, text)
