"""The throughput report as a page: criteria, baseline against Millrace, phases, buckets, profile,
runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from millrace.asr.throughput.comparison import MEASURES, ROLES, Measure, Statistic, Throughput
from millrace.asr.throughput.criteria import PASS, UNKNOWN, Criterion, percent, rate
from millrace.asr.throughput.figures import PHASE_STYLES
from millrace.common.report import page
from millrace.common.report.figures import human_bytes, human_count, human_share
from millrace.common.report.page import Cell, Code, Number, Table
from millrace.common.throughput.run import PHASES

NOTHING = "–"
_TO = "\u2060–\u2060"  # no line ends within a range
_SHOWN: dict[str, Callable[[float], str]] = {
    "rate": rate,
    "share": human_share,
    "bytes": human_bytes,
}
_SETTINGS = (
    "model",
    "precision",
    "loader",
    "batch_seconds",
    "num_workers",
    "gradient_checkpointing",
)
_OPERATORS = "Operators that take most, without what they call"
_ROLES = {"bench": "benchmark", "ideal": "ideal loader"}


def render(throughput: Throughput, judged: list[Criterion], svgs: Mapping[str, str]) -> str:
    """The page; `svgs` are the figures comparison, phases and buckets."""
    workers = Statistic.of([run.use("workers_cpu") for run in throughput.bench])
    audio = [throughput.figure(role, "audio_seconds") for role in ("ideal", "bench")]
    bench = throughput.bench[0]
    worker_seconds = [bench.worker_seconds(name) for name in ("read", "decode")]
    gpus = [(rank, use.get("gpu")) for rank, use in bench.use_by_rank.items()]
    profile = next((run for run in throughput.profile if run.profile), None)
    return page.render(
        Path(__file__).with_name("throughput.html.j2"),
        tiles=_tiles(throughput, judged),
        throughput=throughput,
        svgs=svgs,
        criteria=_criteria(judged),
        comparison=_comparison(throughput),
        phases=_phases(throughput),
        workers=percent(workers.value) if workers and workers.value > 0 else "",
        buckets=_buckets(throughput),
        data=_data(throughput),
        profile=profile,
        profile_tables=_profile(profile.profile) if profile and profile.profile else [],
        runs=_runs(throughput),
        worker_ms=None
        if None in worker_seconds
        else [rate(1000 * spent) for spent in worker_seconds if spent is not None],
        use_by_rank=", ".join(
            f"{rank} {human_share(use)}" for rank, use in gpus if use is not None
        ),
        slowest=bench.slowest_rank,
        fixed_batch=next((run.facts.get("fixed_batch_size") for run in throughput.baseline), None),
        ideal_rates=" against ".join(rate(figure.value) for figure in audio if figure),
    )


def _tiles(throughput: Throughput, judged: list[Criterion]) -> list[tuple[str, Number]]:
    ratio = throughput.ratio("samples")
    tiles = []
    if ratio is not None:
        ours, theirs = (
            throughput.known_figure(role, "samples").value for role in ("bench", "baseline")
        )
        name = f"Faster than the baseline: {rate(ours)} against {rate(theirs)} samples/s"
        tiles.append((name, Number(ratio, f"{ratio:.2f} ×")))
    use = "gpu" if throughput.figure("bench", "gpu") else "cpu"
    for key in ("samples", "audio_seconds", "padding_audio_seconds", "waiting", use):
        if figure := throughput.figure("bench", key):
            name = "Padding" if key == "padding_audio_seconds" else MEASURES[key].name
            tiles.append((name, Number(figure.value, _SHOWN[MEASURES[key].kind](figure.value))))
    passed = sum(criterion.status == PASS for criterion in judged)
    return [*tiles, ("Criteria met", Number(passed, f"{passed} of {len(judged)}"))]


def _criteria(judged: list[Criterion]) -> list[Table]:
    required, project = "What a run of 200 steps has to reach", "What the project wants beyond that"
    signs = {PASS: "✓\u00a0pass", UNKNOWN: "not\u00a0measured"}
    tables = []
    for group, caption in (("required", required), ("project", project)):
        chosen = [criterion for criterion in judged if criterion.group == group]
        rows = [
            [one.name, one.bar, signs.get(one.status, "✗\u00a0fail"), one.figure] for one in chosen
        ]
        tables.append(Table(caption, ["Criterion", "Bar", "Result", "Measured"], rows))
    return tables


def _comparison(throughput: Throughput) -> Table:
    # Of the ideal loader no range is shown; the change stands behind Millrace's own range.
    columns, steady = [""], ["Stability"]
    rows: list[list[Cell]] = [[measure.name] for measure in MEASURES.values()]
    for role, name in throughput.role_names:
        extra = [] if role == "ideal" else ["range"]
        extra += ["against the baseline"] if role == "bench" and throughput.baseline else []
        columns += [name, *extra]
        runs = getattr(throughput, role)
        stability = f"{max(run.done_steps for run in runs)} steps, clean"
        if broken := next((run for run in runs if not run.finished), None):
            stability = f"{broken.done_steps} steps, then: {broken.failed or 'not finished'}"
        steady += [stability, *[""] * len(extra)]
        for measure, row in zip(MEASURES.values(), rows, strict=True):
            cells = _figure_cells(throughput.figure(role, measure.key), measure)
            row.extend([*cells, _change(throughput, measure)][: 1 + len(extra)])
    if throughput.reference:
        columns.append(str(throughput.reference["name"]))
        steady.append("")
        for measure, row in zip(MEASURES.values(), rows, strict=True):
            row.append(_number(throughput.referred(measure.key), _SHOWN[measure.kind]))
    return Table("Baseline against Millrace", columns, [*rows, steady])


def _figure_cells(figure: Statistic | None, measure: Measure) -> list[Cell]:
    if figure is None:
        return ["not measured" if measure.key in ("gpu", "cpu") else NOTHING, ""]
    shown = _SHOWN[measure.kind]
    spread = _range(figure, 1, shown)
    if figure.window_median is not None and spread:
        spread += ", " + f"median {shown(figure.window_median)}".replace(" ", "\u00a0")
    return [_number(figure.value, shown), spread]


def _number(value: float | None, shown: Callable[[float], str]) -> Cell:
    # No line ends between a number and its unit.
    return (
        NOTHING if value is None else Number(round(value, 6), shown(value).replace(" ", "\u00a0"))
    )


def _range(figure: Statistic, scale: float, shown: Callable[[float], str]) -> str:
    """`94.0–96.0 %`; nothing if both ends look the same."""
    first, last = (shown(end * scale).replace(" ", "\u00a0") for end in (figure.low, figure.high))
    unit = last.partition("\u00a0")[2]
    return "" if first == last else f"{first.removesuffix(unit).rstrip()}{_TO}{last}"


def _change(throughput: Throughput, measure: Measure) -> Cell:
    """How many times; of shares, the difference in percentage points."""
    ours, theirs = (
        throughput.figure("bench", measure.key),
        throughput.figure("baseline", measure.key),
    )
    if measure.kind == "share" and ours and theirs:
        return _number(
            100 * (ours.value - theirs.value), lambda v: f"{v:+.1f} points".replace("-", "−")
        )
    return _number(throughput.ratio(measure.key), lambda ratio: f"{ratio:.2f} ×")


def _phases(throughput: Throughput) -> Table:
    shares = {name: throughput.shares(role) for role, name in throughput.role_names}
    rows = []
    for phase in PHASES:
        name = PHASE_STYLES[phase][0]
        cells = [_number(part[phase], human_share) for part in shares.values()]
        rows.append([name[0].upper() + name[1:], *cells])
    total = ["All", *(_number(math.fsum(part.values()), human_share) for part in shares.values())]
    return Table("Share of time by phase", ["Phase", *shares], rows, total)


def _buckets(throughput: Throughput) -> Table:
    filled = [bucket for bucket in throughput.buckets if bucket.rows]
    hours, seen = math.fsum(b.hours for b in filled), math.fsum(b.seen_seconds for b in filled)
    rows: list[list[Cell]] = []
    for bucket in filled if seen else []:
        cells: list[Cell] = [Code(bucket.name), _number(bucket.steps, human_count)]
        for figure, scale, shown in ((bucket.seconds, 1000, rate), (bucket.batch, 1, human_count)):
            cells.append(_number(figure.value * scale if figure else None, shown))
            cells.append(_range(figure, scale, shown) if figure else "")
        cells += [_number(bucket.rate or None, rate), _number(bucket.padding, human_share)]
        cells.append(_number(bucket.peak_memory or None, human_bytes))
        shares = (bucket.seen_seconds / seen, bucket.hours / hours if hours else None)
        rows.append([*cells, *(_number(share, human_share) for share in shares)])
    columns = [
        "Bucket",
        "Steps",
        "Step (ms)",
        "range",
        "Batch (samples)",
        "range",
        "Audio-s/s",
        "Padding",
    ]
    columns += ["Peak memory", "Share of audio", "Share of hours"]
    return Table("Our steps by bucket", columns, rows)


def _data(throughput: Throughput) -> Table:
    rows: list[list[Cell]] = []
    for bucket in throughput.buckets:
        cells = [_number(bucket.rows, human_count), _number(bucket.hours, rate)]
        seconds = [_number(of or None, rate) for of in (bucket.mean_duration, bucket.max_duration)]
        rows.append([Code(bucket.name), *cells, *seconds])
    return Table(
        "The data by bucket", ["Bucket", "Samples", "Hours", "Mean (s)", "Longest (s)"], rows
    )


def _profile(facts: dict[str, Any]) -> list[Table]:
    clocks = {"host_seconds": "Host, per step (ms)"}
    clocks |= {"device_seconds": "GPU, per step (ms)"} if facts["device"] == "cuda" else {}
    phases, operators = [], []
    for row in (*facts["phases"], *facts["operators"]):
        cells = [_number(1000 * row[clock] / facts["steps"], rate) for clock in clocks]
        if "phase" in row:
            share = row["host_seconds"] / facts["seconds"] if facts["seconds"] else None
            phases.append([row["phase"], *cells, _number(share, human_share)])
        else:
            operators.append([Code(row["operator"]), _number(row["calls"], human_count), *cells])
    return [
        Table(
            "Time of the profiled steps by phase",
            ["Phase", *clocks.values(), "Share of host"],
            phases,
        ),
        Table(_OPERATORS, ["Operator", "Calls", *clocks.values()], operators),
    ]


def _runs(throughput: Throughput) -> Table:
    rows: list[list[Cell]] = []
    for role in ROLES:
        for run in getattr(throughput, role):
            seconds = math.fsum(line["seconds"] for line in run.windows)
            cells: list[Cell] = [
                Code(run.name),
                _ROLES.get(role, role),
                _number(run.done_steps, human_count),
            ]
            cells += [
                _number(seconds, lambda value: f"{rate(value)} s"),
                _number(run.world_size, str),
            ]
            cells.append("finished" if run.finished else run.failed or "not finished")
            settings = {key: run.facts.get(key) for key in _SETTINGS}
            shown = [f"{key} {value}" for key, value in settings.items() if value not in (None, "")]
            rows.append([*cells, ", ".join(shown)])
    return Table("Runs", ["Run", "Kind", "Steps", "Training", "Ranks", "State", "Settings"], rows)
