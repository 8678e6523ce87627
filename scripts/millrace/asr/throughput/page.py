"""The throughput report as a page: criteria, baseline against Millrace, phases, buckets, profile,
runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from millrace.asr.throughput import figures
from millrace.asr.throughput.comparison import (
    MEASURES,
    ROLES,
    Bucket,
    Measure,
    Throughput,
)
from millrace.asr.throughput.criteria import PASS, UNKNOWN, Criterion, percent, rate
from millrace.asr.throughput.figures import PHASE_STYLES
from millrace.common.report import page
from millrace.common.report.figures import human_bytes, human_count, human_share
from millrace.common.report.page import Cell, Code, Number, Table
from millrace.common.throughput.run import PHASES, Run

NOTHING = "–"
_SHOWN: dict[str, Callable[[float], str]] = {
    "rate": rate,
    "share": human_share,
    "bytes": human_bytes,
}
_SIGNS = {PASS: "✓\u00a0pass", UNKNOWN: "not\u00a0measured"}


def render(
    throughput: Throughput,
    judged: list[Criterion],
) -> str:
    """The page of these runs."""
    bench = throughput.bench[0]
    workers = bench.use("workers_cpu")
    profile = next((run for run in throughput.profile if run.profile), None)
    return page.render(
        Path(__file__).with_name("throughput.html.j2"),
        tiles=_tiles(throughput, judged),
        throughput=throughput,
        phases_svg=figures.phases(throughput),
        criteria=_criteria(judged),
        comparison=_comparison(throughput),
        phases=_phases(throughput),
        workers=percent(workers) if workers else "",
        buckets=_buckets(throughput.buckets),
        profile=profile,
        profiled_phases=_profile(profile.profile) if profile and profile.profile else None,
        runs=_runs(throughput),
        worker_ms=_worker_ms(bench),
        use_by_rank=_use_by_rank(bench),
        slowest=bench.slowest_rank,
        fixed_batch=next((run.facts.get("fixed_batch_size") for run in throughput.baseline), None),
    )


def _worker_ms(run: Run) -> list[str]:
    """Milliseconds a step that all workers together read and decode; nothing if not measured."""
    seconds = [run.worker_seconds(name) for name in ("read", "decode")]
    known = [spent for spent in seconds if spent is not None]
    if len(known) == 2:
        return [rate(1000 * spent) for spent in known]
    return []


def _use_by_rank(run: Run) -> str:
    uses = [(rank, use.get("gpu")) for rank, use in run.use_by_rank.items()]
    return ", ".join(f"{rank} {human_share(use)}" for rank, use in uses if use is not None)


def _tiles(
    throughput: Throughput,
    judged: list[Criterion],
) -> list[tuple[str, Number]]:
    tiles = []
    ratio = throughput.ratio("samples")
    if ratio is not None:
        ours = throughput.known_rate("bench")
        theirs = throughput.known_rate("baseline")
        name = f"Faster than the baseline: {rate(ours)} against {rate(theirs)} samples/s"
        tiles.append((name, Number(ratio, f"{ratio:.2f} ×")))
    use = "gpu" if throughput.figure("bench", "gpu") else "cpu"
    for key in ("samples", "audio_seconds", "padding_audio_seconds", "waiting", use):
        measure = MEASURES[key]
        figure = throughput.figure("bench", key)
        if figure is not None:
            name = "Padding" if key == "padding_audio_seconds" else measure.name
            tiles.append((name, Number(figure, _SHOWN[measure.kind](figure))))
    passed = sum(criterion.status == PASS for criterion in judged)
    return [*tiles, ("Criteria met", Number(passed, f"{passed} of {len(judged)}"))]


def _criteria(judged: list[Criterion]) -> Table:
    rows = []
    for criterion in judged:
        sign = _SIGNS.get(criterion.status, "✗\u00a0fail")
        rows.append([criterion.name, criterion.bar, sign, criterion.figure])
    columns = ["Criterion", "Bar", "Result", "Measured"]
    return Table("What a run of 200 steps has to reach", columns, rows)


def _comparison(throughput: Throughput) -> Table:
    """A column of figures for each role."""
    measures = list(MEASURES.values())
    columns: dict[str, list[Cell]] = {}
    for role, name in throughput.role_names:
        figures = [_figure(throughput.figure(role, of.key), of) for of in measures]
        columns[name] = [*figures, _steps(throughput.runs[role])]
        if role == "bench" and throughput.baseline:
            changes = [_change(throughput, of) for of in measures]
            columns["against the baseline"] = [*changes, ""]
    if throughput.reference:
        referred = [_number(throughput.referred(of.key), _SHOWN[of.kind]) for of in measures]
        columns[str(throughput.reference["name"])] = [*referred, ""]

    names = [*(of.name for of in measures), "Stability"]
    rows = []
    for number, name in enumerate(names):
        rows.append([name, *(cells[number] for cells in columns.values())])
    return Table("Baseline against Millrace", ["", *columns], rows)


def _steps(runs: Sequence[Run]) -> str:
    for run in runs:
        if not run.finished:
            return f"{run.done_steps} steps, then: {run.failed or 'not finished'}"
    return f"{max(run.done_steps for run in runs)} steps, clean"


def _figure(
    figure: float | None,
    measure: Measure,
) -> Cell:
    if figure is not None:
        return _number(figure, _SHOWN[measure.kind])
    if measure.key in ("gpu", "cpu"):
        return "not measured"
    return NOTHING


def _number(
    value: float | None,
    shown: Callable[[float], str],
) -> Cell:
    if value is None:
        return NOTHING
    # No line ends between a number and its unit.
    return Number(round(value, 6), shown(value).replace(" ", "\u00a0"))


def _change(throughput: Throughput, measure: Measure) -> Cell:
    """How many times; of shares, the difference in percentage points."""
    ours = throughput.figure("bench", measure.key)
    theirs = throughput.figure("baseline", measure.key)
    if measure.kind == "share" and ours is not None and theirs is not None:
        points = 100 * (ours - theirs)
        return _number(points, lambda value: f"{value:+.1f} points".replace("-", "−"))
    return _number(throughput.ratio(measure.key), lambda ratio: f"{ratio:.2f} ×")


def _phases(throughput: Throughput) -> Table:
    shares = {name: throughput.shares(role) for role, name in throughput.role_names}
    rows = []
    for phase in PHASES:
        name = PHASE_STYLES[phase][0]
        cells = [_number(part[phase], human_share) for part in shares.values()]
        rows.append([name[0].upper() + name[1:], *cells])
    sums = [_number(math.fsum(part.values()), human_share) for part in shares.values()]
    return Table("Share of time by phase", ["Phase", *shares], rows, ["All", *sums])


def _buckets(buckets: Sequence[Bucket]) -> Table:
    """Nothing if no steps were recorded by bucket."""
    hours = math.fsum(bucket.hours for bucket in buckets)
    seen = math.fsum(bucket.seen_hours for bucket in buckets)
    rows = [_bucket(bucket, seen, hours) for bucket in buckets if bucket.rows and seen]
    return Table("Our steps by bucket", _BUCKET_COLUMNS, rows)


_BUCKET_COLUMNS = [
    "Bucket",
    "Steps",
    "Step (ms)",
    "Batch (samples)",
    "Audio-s/s",
    "Padding",
    "Peak memory",
    "Share of audio",
    "Share of hours",
]


def _bucket(bucket: Bucket, seen: float, hours: float) -> list[Cell]:
    """The cells of a bucket; `seen` and `hours` are sums over all buckets."""
    return [
        Code(bucket.name),
        _number(bucket.steps, human_count),
        _number(bucket.step_seconds, lambda seconds: rate(1000 * seconds)),
        _number(bucket.batch_size, human_count),
        _number(bucket.audio_seconds_per_second, rate),
        _number(bucket.padding, human_share),
        _number(bucket.peak_memory_bytes, human_bytes),
        _number(bucket.seen_hours / seen, human_share),
        _number(bucket.hours / hours if hours else None, human_share),
    ]


def _profile(facts: dict[str, Any]) -> Table:
    clocks = {"host_seconds": "Host, per step (ms)"}
    if facts["device"] == "cuda":
        clocks["device_seconds"] = "GPU, per step (ms)"

    phases = []
    for row in facts["phases"]:
        times = [_number(1000 * row[clock] / facts["steps"], rate) for clock in clocks]
        share = row["host_seconds"] / facts["seconds"] if facts["seconds"] else None
        phases.append([row["phase"], *times, _number(share, human_share)])
    columns = ["Phase", *clocks.values(), "Share of host"]
    return Table("Time of the profiled steps by phase", columns, phases)


def _runs(throughput: Throughput) -> Table:
    rows: list[list[Cell]] = []
    for role in ROLES:
        for run in throughput.runs[role]:
            seconds = math.fsum(line["seconds"] for line in run.windows)
            state = "finished" if run.finished else run.failed or "not finished"
            cells: list[Cell] = [
                Code(run.name),
                "benchmark" if role == "bench" else role,
                _number(run.done_steps, human_count),
                _number(seconds, lambda value: f"{rate(value)} s"),
                _number(run.world_size, str),
                state,
                f"{run.facts.get('model')}, {run.facts.get('precision')}",
            ]
            rows.append(cells)
    columns = ["Run", "Kind", "Steps", "Training", "Ranks", "State", "Model, precision"]
    return Table("Runs", columns, rows)
