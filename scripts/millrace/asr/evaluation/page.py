"""The page of the runs: what each is worth, how it learned, where it fails, and what it cannot
tell."""

from __future__ import annotations

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

_STYLES = ("-", "--", ":", "-.")  # of runs that share a colour
_PANELS = (("Training loss", "train", "loss", 1), ("CER of dev (%)", "eval", "cer", 100))


def render(runs: Sequence[Run], clips: Sequence[Clip]) -> str:
    """The page of these runs."""
    return page.render(
        Path(__file__).with_name("runs.html.j2"),
        runs=runs,
        tiles=_tiles(runs),
        curves=_learning_curves(runs),
        side_by_side=_side_by_side(runs),
        rates=[table for split in _SPLITS for table in _rate_tables(runs, split)],
        clips=clips,
        limits=_limits(runs),
    )


def _tiles(runs: Sequence[Run]) -> list[tuple[str, Number]]:
    """The rates of the run with the lowest CER: of test, or else of dev."""

    def cer(run: Run) -> float:
        return next(
            (run.rates[name]["overall"]["cer"] for name in _SPLITS if name in run.rates),
            float("inf"),
        )

    best, tiles = min(runs, key=cer), []
    for split in _SPLITS:
        for name in ("cer", "wer") if split in best.rates else ():
            rate = best.rates[split]["overall"][name]
            tiles.append(
                (f"{name.upper()} of {split}, {best.name}", Number(rate, f"{100 * rate:.1f} %"))
            )
    return tiles


def _percent(rates: dict[str, Any] | None, name: str) -> Cell:
    return (
        Number(round(rates[name], 6), shown(rates, name).replace(" ", "\u00a0"))
        if rates
        else _NOTHING
    )


def _side_by_side(runs: Sequence[Run]) -> Table:
    """A column for each run: its size and length, its rates, and the settings in which the runs
    differ."""
    of_runs: list[dict[str, Cell]] = []
    for run in runs:
        of = run.metrics
        cells: dict[str, Cell] = {"Model": Code(Path(str(of["model"])).name)}
        for name, key in (
            ("Parameters", "parameters"),
            ("Steps", "optimizer_steps"),
            ("Samples", "samples"),
        ):
            cells[name] = Number(of[key], human_count(of[key]))
        cells["Training"] = Number(of["seconds"], human_hours(of["seconds"] / 3600))
        cells["Ranks"] = Number(of["ranks"], str(of["ranks"]))
        for split, losses in (("dev", of["last_evaluation"]), ("test", of.get("test"))):
            loss = (losses or {}).get("loss")
            cells[f"{split}: loss"] = _NOTHING if loss is None else Number(loss, f"{loss:.3f}")
            for name in ("cer", "wer"):
                cells[f"{split}: {name.upper()}"] = _percent(
                    run.rates.get(split, {}).get("overall"), name
                )
        of_runs.append(cells)
    for name in sorted({name for run in runs for name in run.settings}):
        values = [str(run.settings.get(name, _NOTHING)) for run in runs]
        # A path of this machine says nothing about the run.
        if len(set(values)) > 1 and "/" not in "".join(values):
            for cells, value in zip(of_runs, values, strict=True):
                cells[name] = Code(value)
    rows = [[name, *(cells[name] for cells in of_runs)] for name in of_runs[0]]
    return Table("Runs side by side", ["", *(run.name for run in runs)], rows)


def _rate_tables(runs: Sequence[Run], split: str) -> list[Table]:
    tables = []
    overall = [run.rates.get(split, {}).get("overall") for run in runs]
    for noun in ("language", "duration"):
        of_runs = [run.rates.get(split, {}).get(f"by_{noun}", {}) for run in runs]
        # Languages by name, buckets by their lower edge.
        names = sorted({name for of in of_runs for name in of})
        if noun == "duration":
            names.sort(key=lambda name: float(name.split("_")[1]))
        columns = [noun.capitalize(), "Samples", "Recordings", "Audio"]
        columns += [f"{run.name}: {name}" for run in runs for name in ("CER", "WER")]
        rows: list[list[Cell]] = []
        for name, groups in [
            *((name, [of.get(name) for of in of_runs]) for name in names),
            ("All", overall),
        ]:
            first = next(filter(None, groups), None)
            if first is not None:
                counts = [
                    Number(first[key], human_count(first[key])) for key in ("samples", "recordings")
                ]
                hours = Number(first["seconds"], human_hours(first["seconds"] / 3600))
                cells = [_percent(group, rate) for group in groups for rate in ("cer", "wer")]
                rows.append([Code(name) if name in names else name, *counts, hours, *cells])
        if len(rows) > 1:
            tables.append(Table(f"{split}: error rates by {noun}", columns, rows[:-1], rows[-1]))
    return tables


def _limits(runs: Sequence[Run]) -> list[str]:
    """What these runs cannot tell, a sentence each."""
    limits = []
    if cpu := [run.name for run in runs if run.machine.get("device") == "cpu"]:
        limits.append(
            f"Trained on a CPU: {', '.join(cpu)}. Samples per second, use and memory of a GPU,"
            " precision bf16, and whether calibrated batches fit cannot be judged from that; error"
            " rates and losses can"
        )
    counts = ((run.name, split, run.rates[split]) for run in runs for split in run.rates)
    counts = ((name, split, of["overall"]["recordings"]) for name, split, of in counts)
    if few := [f"{split} of {name} has {count}" for name, split, count in counts if count < _FEW]:
        limits.append(
            f"Few recordings: {', '.join(few)}. Intervals of so few are too narrow as a rule"
        )
    if any(line["recording"] == line["key"] for run in runs for line in run.hypotheses):
        limits.append(
            "Some keys do not end with their span in a recording (<recording>_<start>_<end>,"
            " milliseconds): such samples count as recordings of their own; if they share speakers,"
            " intervals are too narrow"
        )
    lacking = ((run.name, split) for run in runs for split in _SPLITS if split not in run.rates)
    if missing := [f"{name} has no {split}" for name, split in lacking]:
        again = "; runs that an earlier version made have none until they are trained again"
        limits.append(f"Without error rates: {', '.join(missing)}{again}")
    if len({frozenset(line["sample_id"] for line in run.hypotheses) for run in runs}) > 1:
        limits.append(
            "The runs were evaluated on different samples, so that their rates are not comparable"
        )
    return limits


def _learning_curves(runs: Sequence[Run]) -> str:
    """The SVG of loss and error rate over steps: a panel for each, a line for each run."""
    styles = [
        (PALETTE[at % len(PALETTE)], _STYLES[at // len(PALETTE) % 4]) for at in range(len(runs))
    ]
    panels = []
    for title, event, key, scale in _PANELS:
        points = [[(step, scale * value) for step, value in run.curve(event, key)] for run in runs]
        lines = [(*style, each) for style, each in zip(styles, points, strict=True)]
        panels.append(figures.Curves(title, lines))
    subtitle = "Loss of each line of the training's log, and error rate of each evaluation"
    legend = [(run.name, colour) for run, (colour, _) in zip(runs, styles, strict=True)]
    return figures.line_chart("Learning curves", subtitle, panels, legend)
