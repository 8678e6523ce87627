"""The page on version matching: coverage of the splits, figures of the runs."""

from __future__ import annotations

from collections.abc import Sequence
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
_COUNTS = (
    ("cliques", "Cliques"),
    ("cliques_found", "Usable"),
    ("versions", "Versions"),
    ("versions_found", "With features"),
)


class Run(NamedTuple):
    """A trained run: its folder, what evaluate_model said, validations by epoch (0: untrained),
    and the figure by which the best model was chosen."""

    folder: Path
    test: dict[str, Any]
    validations: list[dict[str, float]]
    monitor: Monitor

    @classmethod
    def of(cls, test: Path) -> Run:
        """The run in the folder of a test.json."""
        lines = jsonl.whole_lines(test.with_name("metrics.jsonl"))
        validations = [line["metrics"] for line in lines if line["event"] == "eval"]
        conf = flat(read_yaml(test.with_name(CONFIGURATION)))
        return cls(
            test.parent, jsonl.read(test), validations, Monitor(conf["training.monitor.quantity"])
        )

    def best(self) -> dict[str, float]:
        """The validation of the model that was evaluated: the best that was trained."""
        return min(self.validations[1:] or self.validations, key=self.monitor.cost)


def render(coverage: dict[str, Any], tests: Sequence[Path]) -> str:
    """The page of the coverage of an index, and of runs, by the test.json in the folder of each."""
    runs = [Run.of(test) for test in tests]
    return page.render(
        Path(__file__).with_name("matching.html.j2"),
        tiles=[
            ("Tracks", _number(coverage["tracks"])),
            ("Audio", _number(coverage["hours"], "{:,.1f} h")),
        ],
        coverage=_coverage(coverage["splits"]),
        figures=_results(runs),
    )


def _number(value: float, form: str = "{:,}") -> Number:
    return Number(round(value, 6), form.format(value))


def _coverage(splits: Sequence[dict[str, Any]]) -> Table:
    """What of each split has features."""
    rows = []
    for split in splits:
        share = 1 - split["missing_fraction"]
        counts = [_number(split[key]) for key, _ in _COUNTS]
        hours = _number(split["hours"], "{:,.1f}")
        rows.append([split["split"], *counts, Number(share, figures.human_share(share)), hours])
    columns = ["Split", *(title for _, title in _COUNTS), "Share", "Hours"]
    title = "Versions with features; a clique is usable with two recordings"
    return Table(title, columns, rows)


def _results(runs: Sequence[Run]) -> Table:
    """Figures on the valid split, untrained and best, and on the test split."""
    rows: list[list] = []
    for run in runs:
        test = {f"valid/{key}": value for key, value in run.test["figures"].items()}
        shown = (
            ("valid, untrained", run.validations[0]),
            ("valid, best epoch", run.best()),
            (f"test, {run.test['queries']} queries", test),
        )
        for words, figures_of in shown:
            cells = [_number(figures_of[f"valid/{key}"], form) for key, _, form in _FIGURES]
            rows.append([Code(run.folder.name), words, *cells])
    columns = ["Run", "Cliques of", *(name for _, name, _ in _FIGURES)]
    return Table("Retrieval of versions that no run has trained on", columns, rows)
