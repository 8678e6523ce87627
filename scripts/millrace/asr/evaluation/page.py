"""The page of the runs: what each is worth, how it learned, where it fails, and what it cannot
tell."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from millrace.asr.evaluation.rates import shown
from millrace.asr.evaluation.runs import Clip, Run
from millrace.common.report import figures, page
from millrace.common.report.figures import PALETTE, human_count, human_hours
from millrace.common.report.page import Cell, Code, Number, Table

_NOTHING = "–"
_SPLITS = ("test", "dev")
_FEW = 20  # recordings below which an interval is a rough guess

_DASHES = ("-", "--", ":", "-.")  # of runs that share a colour
_PANELS = (("Training loss", "train", "loss", 1), ("CER of dev (%)", "eval", "cer", 100))


def render(
    runs: Sequence[Run],
    clips: Sequence[Clip],
    leaks: Sequence[str] = (),
) -> str:
    """The page of these runs; `leaks` says which rows of their data are also held out."""
    nouns = ("language", "duration")
    rates = [_rate_table(runs, split, noun) for split in _SPLITS for noun in nouns]
    return page.render(
        Path(__file__).with_name("runs.html.j2"),
        runs=runs,
        leaks=leaks,
        tiles=_tiles(runs),
        curves=_learning_curves(runs),
        side_by_side=_side_by_side(runs),
        rates=[table for table in rates if table is not None],
        clips=clips,
        limits=_limits(runs),
    )


def _overall(run: Run, split: str) -> dict[str, Any] | None:
    if split in run.rates:
        return run.rates[split]["overall"]
    return None


def _tiles(runs: Sequence[Run]) -> list[tuple[str, Number]]:
    """The rates of the run with the lowest CER: of test, or else of dev."""

    def cer(run: Run) -> float:
        known = [_overall(run, split) for split in _SPLITS]
        return next((rates["cer"] for rates in known if rates), float("inf"))

    best = min(runs, key=cer)
    tiles = []
    for split in _SPLITS:
        rates = _overall(best, split)
        if rates is None:
            continue
        for key in ("cer", "wer"):
            text = f"{100 * rates[key]:.1f} %"
            tiles.append((f"{key.upper()} of {split}, {best.name}", Number(rates[key], text)))
    return tiles


def _percent(rates: dict[str, Any] | None, key: str) -> Cell:
    if not rates:
        return _NOTHING
    text = shown(rates, key).replace(" ", "\u00a0")
    return Number(round(rates[key], 6), text)


def _side_by_side(runs: Sequence[Run]) -> Table:
    """A column for each run: its size and length, its rates, and the settings in which the runs
    differ."""
    columns = [_figures(run) for run in runs]
    rows: list[list[Cell]] = []
    for name in columns[0]:
        cells = [column[name] for column in columns]
        rows.append([name, *cells])
    for name in sorted({name for run in runs for name in run.settings}):
        values = [str(run.settings.get(name, _NOTHING)) for run in runs]
        # A path of this machine says nothing about the run.
        if len(set(values)) > 1 and "/" not in "".join(values):
            rows.append([name, *map(Code, values)])
    return Table("Runs side by side", ["", *(run.name for run in runs)], rows)


def _figures(run: Run) -> dict[str, Cell]:
    metrics = run.metrics
    seconds = metrics["seconds"]
    model = Path(str(metrics["model"]))
    cells: dict[str, Cell] = {"Model": Code(model.name)}
    for title, name in (
        ("Parameters", "parameters"),
        ("Steps", "optimizer_steps"),
        ("Samples", "samples"),
    ):
        cells[title] = Number(metrics[name], human_count(metrics[name]))
    cells["Training"] = Number(seconds, human_hours(seconds / 3600))
    cells["Ranks"] = Number(metrics["ranks"], str(metrics["ranks"]))

    losses = {
        "dev": metrics["last_evaluation"],
        "test": metrics.get("test"),
    }
    for split, evaluated in losses.items():
        loss = (evaluated or {}).get("loss")
        cells[f"{split}: loss"] = _NOTHING if loss is None else Number(loss, f"{loss:.3f}")
        rates = _overall(run, split)
        cells[f"{split}: CER"] = _percent(rates, "cer")
        cells[f"{split}: WER"] = _percent(rates, "wer")
    return cells


def _rate_table(
    runs: Sequence[Run],
    split: str,
    noun: str,
) -> Table | None:
    """Rates by language or by duration; None of a split that no run has."""
    by_group = []
    found: set[str] = set()
    for run in runs:
        groups = run.rates.get(split, {}).get(f"by_{noun}", {})
        by_group.append(groups)
        found.update(groups)
    names = sorted(found)
    if noun == "duration":
        names.sort(key=lambda name: float(name.split("_")[1]))  # b_<lower edge>_<upper edge>
    if not names:
        return None
    columns = [noun.capitalize(), "Samples", "Recordings", "Audio"]
    for run in runs:
        columns += [f"{run.name}: CER", f"{run.name}: WER"]
    rows = []
    for name in names:
        of_runs = [groups.get(name) for groups in by_group]
        rows.append([Code(name), *_rates_of(of_runs)])
    overall = [_overall(run, split) for run in runs]
    total = ["All", *_rates_of(overall)]
    return Table(f"{split}: error rates by {noun}", columns, rows, total)


def _rates_of(of_runs: Sequence[dict[str, Any] | None]) -> list[Cell]:
    """Counts, which the first run that has the group says, and the rates of each run."""
    first = next(filter(None, of_runs))
    cells: list[Cell] = [
        Number(first["samples"], human_count(first["samples"])),
        Number(first["recordings"], human_count(first["recordings"])),
        Number(first["seconds"], human_hours(first["seconds"] / 3600)),
    ]
    for rates in of_runs:
        cells += [_percent(rates, "cer"), _percent(rates, "wer")]
    return cells


def _limits(runs: Sequence[Run]) -> list[str]:
    """What these runs cannot tell, a sentence each."""
    few = []
    for run in runs:
        for split in _SPLITS:
            rates = _overall(run, split)
            if rates is not None and rates["recordings"] < _FEW:
                few.append(f"{split} of {run.name} has {rates['recordings']}")

    limits = []
    if few:
        limits.append(
            f"Few recordings: {', '.join(few)}. Intervals of so few are too narrow as a rule"
        )
    samples = {frozenset(line["sample_id"] for line in run.hypotheses) for run in runs}
    if len(samples) > 1:
        limits.append(
            "The runs were evaluated on different samples, so that their rates are not comparable"
        )
    return limits


def _learning_curves(runs: Sequence[Run]) -> str:
    """The SVG of loss and error rate over steps: a panel for each, a line for each run."""
    kinds = itertools.cycle(itertools.product(_DASHES, PALETTE))
    drawn = [(run, *next(kinds)) for run in runs]
    panels = []
    for title, event, key, scale in _PANELS:
        lines = []
        for run, dashes, colour in drawn:
            points = [(step, scale * value) for step, value in run.curve(event, key)]
            lines.append((colour, dashes, points))
        panels.append(figures.Curves(title, lines))
    subtitle = "Loss of each line of the training's log, and error rate of each evaluation"
    legend = [(run.name, colour) for run, _, colour in drawn]
    return figures.line_chart("Learning curves", subtitle, panels, legend)
