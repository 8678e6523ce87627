"""The page on version matching: coverage, clique sizes, training curves, figures, nearest
versions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from millrace.common import jsonl
from millrace.common.report import figures, page
from millrace.common.report.page import Code, Number, Table
from millrace.music.models.config import CONFIGURATION, flat, read_yaml
from millrace.music.training.conf import Monitor

_FIGURES = (
    ("m_MAP", "MAP", "{:.3f}"),
    ("m_MR1", "MR1", "{:.2f}"),
    ("m_ARP", "NAR (%)", "{:.1f}"),
)
_PANELS = {
    "Loss": [("train/l_main", "-"), ("valid/l_main", "--")],
    "NAR of the valid split (%)": [("valid/m_ARP", "-")],
}
_COUNTS = ("cliques", "cliques_found", "versions", "versions_found")


class Run(NamedTuple):
    """A trained run: its folder, what evaluate_model said, validations by epoch (0: untrained),
    and the figure by which the best model was chosen."""

    folder: Path
    test: dict[str, Any]
    validations: list[dict[str, float]]
    monitor: Monitor

    def best(self) -> dict[str, float]:
        """The validation of the model that was evaluated: the best that was trained."""
        return min(self.validations[1:] or self.validations, key=self.monitor.cost)


def render(coverage: dict[str, Any], tests: Sequence[Path]) -> str:
    """The page of the coverage of an index, and of runs, by the test.json in the folder of each."""
    runs = []
    for test in tests:
        lines = jsonl.whole_lines(test.with_name("metrics.jsonl"))
        validations = [line["metrics"] for line in lines if line["event"] == "eval"]
        of_run = flat(read_yaml(test.with_name(CONFIGURATION)))
        figures_of_test = jsonl.read(test)
        runs.append(Run(test.parent, figures_of_test, validations, Monitor.of(of_run)))
    missing = sum(split["missing"] for split in coverage["splits"])
    tiles = [
        ("Tracks", _number(coverage["tracks"])),
        ("Audio", _number(coverage["hours"], "{:,.1f} h")),
        ("Missing", _number(missing)),
    ]
    for run in runs[:1]:
        for key, name, form in _FIGURES:
            tiles.append((f"Test {name}", _number(run.test["figures"][key], form)))
    columns = ["Split", "Cliques", "Usable", "Versions", "With features", "Share", "Hours"]
    rows = []
    for split in coverage["splits"]:
        share = 1 - split["missing_fraction"]
        counts = [
            *(_number(split[key]) for key in _COUNTS),
            Number(share, figures.human_share(share)),
        ]
        rows.append([split["split"], *counts, _number(split["hours"], "{:,.1f}")])
    return page.render(
        Path(__file__).with_name("matching.html.j2"),
        tiles=tiles,
        coverage=Table(
            "Versions with features; a clique is usable with two recordings", columns, rows
        ),
        sizes=_sizes(runs[0].test["sizes"]) if runs else "",
        curves=_curves(runs),
        figures=_results(runs),
        nearest=_nearest(runs[0]) if runs else None,
        strategy=runs[0].test["redux"] if runs else "",
    )


def _number(value: float, form: str = "{:,}") -> Number:
    return Number(round(value, 6), form.format(value))


def _sizes(splits: Mapping[str, Mapping[str, int]]) -> str:
    """Cliques by the number of their recordings, a panel for each split."""
    panels = []
    for split, counts in splits.items():
        sizes = {int(size): count for size, count in counts.items()}
        bars = {f"{size} recordings": count for size, count in sorted(sizes.items()) if size < 10}
        if many := sum(count for size, count in sizes.items() if size >= 10):
            bars["10 or more recordings"] = many
        series = [(figures.PALETTE[0], [*bars.values()])]
        notes = [*map(figures.human_count, bars.values())]
        panels.append(figures.Panel(f"{split}: cliques", [*bars], series, notes, whole=True))
    return figures.bar_chart("Cliques by size", "Recordings that have features", panels)


def _curves(runs: Sequence[Run]) -> str:
    """Loss of training and validation, and NAR of the valid split, by epoch."""
    legend = [
        (run.folder.name, figures.PALETTE[at % len(figures.PALETTE)]) for at, run in enumerate(runs)
    ]
    panels = []
    for title, curves in _PANELS.items():
        lines = []
        for run, (_, colour) in zip(runs, legend, strict=True):
            for key, dashes in curves:
                known = [row for row in run.validations if key in row]
                points = [(row["hpar/epoch"], row[key]) for row in known]
                lines.append((colour, dashes, points))
        panels.append(figures.Curves(title, lines, count="epoch"))
    subtitle = "By epoch; epoch 0 is the untrained model; dashed: valid split"
    return figures.line_chart("Training curves", subtitle, panels, legend)


def _results(runs: Sequence[Run]) -> Table:
    """Figures on the valid split, untrained and best, and on the test split with intervals."""
    rows: list[list] = []
    for run in runs:
        shown = (("valid, untrained", run.validations[0]), ("valid, best epoch", run.best()))
        for words, each in shown:
            cells = [_number(each[f"valid/{key}"], form) for key, _, form in _FIGURES]
            rows.append([Code(run.folder.name), words, *cells])
        cells = []
        for key, _, form in _FIGURES:
            width = form.format(run.test["intervals"][key])
            cells.append(_number(run.test["figures"][key], f"{form} ± {width}"))
        rows.append([Code(run.folder.name), f"test, {run.test['queries']} queries", *cells])
    columns = ["Run", "Cliques of", *(name for _, name, _ in _FIGURES)]
    return Table(
        "Retrieval of versions that no run has trained on; ± 95 % intervals", columns, rows
    )


def _nearest(run: Run) -> Table:
    """The nearest tracks of some queries of the test split."""
    rows = []
    for query in run.test["nearest"]:
        for rank, each in enumerate(query["tracks"], 1):
            first = f"{query['title']} · {query['clique']}" if rank == 1 else ""
            hit = "✓ yes" if each["clique"] == query["clique"] else "no"
            distance = each["distance"]
            cells = [each["title"], Code(each["clique"]), hit, Number(distance, f"{distance:.3g}")]
            rows.append([first, _number(rank), *cells])
    columns = ["Query", "Rank", "Nearest", "Clique", "Version?", "Distance"]
    return Table(
        f"Nearest versions of {len(run.test['nearest'])} tracks, run {run.folder.name}",
        columns,
        rows,
    )
