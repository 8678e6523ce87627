"""The throughput report as a page: criteria, comparison, phases, buckets, profile."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from millrace.asr.throughput.comparison import MEASURES, Bucket, Comparison, rate
from millrace.asr.throughput.criteria import PASS, UNKNOWN, Criterion
from millrace.common.report import page
from millrace.common.report.figures import human_bytes, human_count, human_share
from millrace.common.report.page import Cell, Code, Number, Table
from millrace.common.throughput.run import PHASES
from millrace.common.training.settings import regime

_SIGNS = {PASS: "✓\u00a0pass", UNKNOWN: "not\u00a0measured"}
_PHASE_NAMES = {
    "data_wait": "Wait for data",
    "copy": "Copy to the device",
    "sync": "Wait for other ranks",
    "idle": "Rest",
}


def render(comparison: Comparison, judged: list[Criterion]) -> str:
    """The page of these runs."""
    bench = comparison.bench
    facts = bench.facts
    device = bench.machine.get("device", "cpu")
    passed = sum(criterion.status == PASS for criterion in judged)
    tiles = [("Criteria met", Number(passed, f"{passed} of {len(judged)}"))]
    ratio = comparison.ratio(MEASURES[0])
    if ratio is not None:
        tiles.insert(0, ("Samples/s against the baseline", Number(ratio, f"{ratio:.2f} ×")))
    return page.render(
        Path(__file__).with_name("throughput.html.j2"),
        tiles=tiles,
        bench=bench,
        difference=comparison.difference(),
        regime=regime(facts.get("precision", ""), facts.get("tf32"), on_gpu=device != "cpu"),
        criteria=_criteria(judged),
        comparison=_comparison(comparison),
        phases=_phases(comparison),
        buckets=_buckets(comparison.buckets),
        profile=_profile(comparison.profile.profile),
    )


def _criteria(judged: list[Criterion]) -> Table:
    rows = []
    for criterion in judged:
        sign = _SIGNS.get(criterion.status, "✗\u00a0fail")
        rows.append([criterion.name, criterion.bar, sign, criterion.figure])
    columns = ["Criterion", "Bar", "Result", "Measured"]
    return Table("What a run of 200 steps has to reach", columns, rows)


def _number(value: float | None, shown: Callable[[float], str]) -> Cell:
    if value is None:
        return "–"
    # No line ends between a number and its unit.
    return Number(round(value, 6), shown(value).replace(" ", "\u00a0"))


def _comparison(comparison: Comparison) -> Table:
    rows = []
    for measure in MEASURES:
        figures = [_number(measure.of(run), measure.shown) for run in comparison.compared.values()]
        ratio = _number(comparison.ratio(measure), lambda ratio: f"{ratio:.2f} ×")
        rows.append([measure.name, *figures, ratio])
    columns = ["", *comparison.compared, "against the baseline"]
    return Table("Baseline against Millrace", columns, rows)


def _phases(comparison: Comparison) -> Table:
    shares = [run.shares for run in comparison.compared.values()]
    rows = []
    for phase in PHASES:
        cells = [_number(part[phase], human_share) for part in shares]
        rows.append([_PHASE_NAMES.get(phase, phase.capitalize()), *cells])
    return Table("Share of time by phase", ["Phase", *comparison.compared], rows)


def _buckets(buckets: Sequence[Bucket]) -> Table:
    hours = math.fsum(bucket.hours for bucket in buckets)
    seen = math.fsum(bucket.seen_hours for bucket in buckets)
    rows: list[dict[str, Cell]] = []
    for bucket in buckets:
        if not bucket.rows:
            continue
        cells = {
            "Bucket": Code(bucket.name),
            "Steps": _number(bucket.steps, human_count),
            "Step (ms)": _number(bucket.step_seconds, lambda seconds: rate(1000 * seconds)),
            "Audio-s/s": _number(bucket.audio_seconds_per_second, rate),
            "Padding": _number(bucket.padding, human_share),
            "Peak memory": _number(bucket.peak_memory_bytes, human_bytes),
            "Share of audio": _number(bucket.seen_hours / seen if seen else None, human_share),
            "Share of hours": _number(bucket.hours / hours, human_share),
        }
        rows.append(cells)
    titles = list(rows[0]) if rows else []
    return Table("Our steps by bucket", titles, [list(cells.values()) for cells in rows])


def _profile(profile: dict[str, Any] | None) -> Table | None:
    """Nothing if the run ended before the steps that were to be profiled."""
    if profile is None:
        return None
    rows = []
    for row in profile["phases"]:
        clocks = (row["host_seconds"], row["device_seconds"])
        times = [_number(1000 * seconds / profile["steps"], rate) for seconds in clocks]
        rows.append([row["phase"], *times])
    columns = ["Phase", "Host, per step (ms)", "GPU, per step (ms)"]
    return Table("Time of the profiled steps by phase", columns, rows)
