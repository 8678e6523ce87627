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
    """Loss and accuracies of the run in a folder; `summary` is its metrics.json, `leaks`
    says which of its images are also held out."""
    train, evals = _events(run / "metrics.jsonl")
    waited = _waited(train)
    subtitle = f"{waited} of the time waited for data"
    svg = figures.line_chart(f"Training of {summary['arch']}", subtitle, _curves(train, evals))

    lead = f"{summary['samples']:,} images, {summary['optimizer_steps']:,} steps."
    for leak in leaks:
        lead += f" {leak}."
    tiles: list[tuple[str, Cell]] = [
        ("Best top-1", figures.human_share(summary["best"]["acc1"] / 100)),
        ("Waited for data", waited),
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
    shares = [row["time_share"]["data_wait"] for row in train]
    return figures.human_share(np.dot(shares, seconds), sum(seconds))


def _curves(train: Sequence[Mapping], evals: Sequence[Mapping]) -> list[Curves]:
    """Loss and top-1 by step."""
    losses = [(row["step"], row["loss"]) for row in train]
    top1 = [(row["step"], row["metrics"]["acc1"]) for row in evals]
    return [
        Curves("Training loss", [(PALETTE[0], "-", losses)]),
        Curves("Top-1 of val (%)", [(PALETTE[0], "-", top1)]),
    ]


def _validations(evals: Sequence[Mapping], epochs: int) -> Table:
    """The figures on val after each epoch, the last of which is `epochs` - 1."""
    columns = ["Epoch", "Step", "Loss on val", "Top-1 (%)", "Top-5 (%)"]
    cells: list[list[Cell]] = []
    for epoch, row in enumerate(evals, epochs - len(evals)):
        metrics = row["metrics"]
        cells.append(
            [
                str(epoch),
                Number(row["step"], f"{row['step']:,}"),
                Number(metrics["loss"], f"{metrics['loss']:.3g}"),
                Number(metrics["acc1"], f"{metrics['acc1']:.1f}"),
                Number(metrics["acc5"], f"{metrics['acc5']:.1f}"),
            ]
        )
    return Table("Validation after each epoch", columns, cells)
