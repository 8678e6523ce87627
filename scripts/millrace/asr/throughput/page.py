"""The throughput report as a page: criteria, baseline against Millrace, phases, buckets, profile, runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from millrace.asr.throughput.comparison import MEASURES, Measure, Throughput
from millrace.asr.throughput.criteria import MEASURE, PASS, UNKNOWN, Criterion, percent, rate
from millrace.asr.throughput.figures import PHASE_STYLES
from millrace.asr.throughput.run import PHASES
from millrace.common.report.figures import human_bytes, human_count, human_share
from millrace.common.report.page import Cell, Code, Drawing, Number, Paragraph, Section, Table, page

TITLE, _AGAINST = "Training throughput", "Baseline against Millrace"
NOTHING = "–"
_TO = "\u2060–\u2060"  # no line ends within a range
_SHOWN = {"rate": rate, "share": human_share, "bytes": human_bytes}
_SETTINGS = (
    "model",
    "precision",
    "loader",
    "batch_size",
    "batch_seconds",
    "num_workers",
    "gradient_checkpointing",
)
_ROLES = {"bench": "benchmark", "ideal": "ideal loader"}


def render(throughput: Throughput, judged: list[Criterion], svgs: Mapping[str, str]) -> str:
    """The page; `svgs` are the figures comparison, phases and buckets."""
    drawings = {name: Drawing(name, svg) for name, svg in svgs.items()}
    sections = [
        Section("criteria", "Success criteria", _criteria(judged)),
        Section("comparison", _AGAINST, _comparison(throughput, drawings["comparison"])),
        Section("phases", "Where the time goes", _phases(throughput, drawings["phases"])),
        Section("buckets", "Buckets", [drawings["buckets"], _buckets(throughput)]),
        Section("profile", "Profile", _profile(throughput)),
        Section("runs", "Runs", [_runs(throughput)]),
    ]
    sections = [section for section in sections if section.parts]
    return page(TITLE, _lead(throughput), _tiles(throughput, judged), sections)


def _lead(throughput: Throughput) -> str:
    machine, ranks = throughput.bench[0].machine, throughput.bench[0].world_size
    place = throughput.device if throughput.on_gpu else f"CPU ({machine.get('cpu', 'unknown')})"
    parts = [f"{ranks} × {place}" if throughput.on_gpu or ranks > 1 else place]
    if memory := machine.get("device_memory_bytes"):
        parts.append(f"{human_bytes(memory)} of GPU memory")
    if cores := machine.get("cores"):
        parts.append(f"{cores:g} CPU cores")
    if torch := machine.get("torch"):
        parts.append(f"PyTorch {torch}")
    missing = "" if throughput.on_gpu else " There was no GPU: GPU use and GPU memory were not measured."
    return f"Measured on {', '.join(parts)}.{missing}"


def _tiles(throughput: Throughput, judged: list[Criterion]) -> list[tuple[str, Number]]:
    ratio = throughput.ratio("samples")
    tiles = [] if ratio is None else [("Faster than the baseline", Number(ratio, f"{ratio:.2f} ×"))]
    use = "gpu" if throughput.figure("bench", MEASURE["gpu"]) else "cpu"
    names = {"padding_audio_seconds": "Padding"}
    for key in ("samples", "audio_seconds", "padding_audio_seconds", "waiting", use):
        if figure := throughput.figure("bench", MEASURE[key]):
            name = names.get(key, MEASURE[key].name)
            tiles.append((name, Number(figure.value, _SHOWN[MEASURE[key].kind](figure.value))))
    passed = sum(criterion.status == PASS for criterion in judged)
    return [*tiles, ("Criteria met", Number(passed, f"{passed} of {len(judged)}"))]


def _criteria(judged: list[Criterion]) -> list[Table]:
    captions = {
        "required": "What a run of 200 steps has to reach",
        "project": "What the project wants beyond that",
    }
    signs = {PASS: "✓\u00a0pass", UNKNOWN: "not\u00a0measured"}
    tables = []
    for group, caption in captions.items():
        chosen = [criterion for criterion in judged if criterion.group == group]
        rows = [[one.name, one.bar, signs.get(one.status, "✗\u00a0fail"), one.figure] for one in chosen]
        tables.append(Table(caption, ["Criterion", "Bar", "Result", "Measured"], rows))
    return tables


def _comparison(throughput: Throughput, drawing: Drawing) -> list[Any]:
    counts = {name: len(getattr(throughput, role)) for role, name in throughput.role_names}
    text = ", ".join(f"{name} {count} run{'s' if count > 1 else ''}" for name, count in counts.items())
    text += ". Figures are of whole runs, but for the first line of the log (start of workers, allocations)."
    text += " With several runs: their median, and the range from the lowest to the highest. With one: the"
    text += " range of the lines of its log, whose batches are of other buckets, and their median."
    if throughput.ideal:
        text += " The ideal loader replays batches from memory."
    parts: list[Any] = [Paragraph(text), drawing]

    # Of the ideal loader no range is shown; the change stands behind Millrace's own range.
    columns, steady = [""], ["Stability"]
    for role, name in throughput.role_names:
        extra = [] if role == "ideal" else ["range"]
        extra += ["against the baseline"] if role == "bench" and throughput.baseline else []
        columns += [name, *extra]
        steady += [_stability(getattr(throughput, role)), *[""] * len(extra)]
    rows: list[list[Cell]] = []
    for measure in MEASURES:
        cells: list[Cell] = [measure.name]
        for role, _ in throughput.role_names:
            cells += _figure_cells(throughput, role, measure)[: 1 if role == "ideal" else 2]
            cells += [_change(throughput, measure)] if role == "bench" and throughput.baseline else []
        rows.append(cells)
    parts.append(Table(_AGAINST, columns, [*rows, steady]))

    if differences := throughput.differences():
        parts.append(Paragraph(f"Not comparable: {'; '.join(differences)}."))
    use = "of NVML, the share of time in which a kernel ran" if throughput.on_gpu else "not measured"
    notes = f"CPU use: of the trainer and its workers, as a share of the cores. GPU use: {use}."
    if memory := throughput.bench[0].facts.get("memory_is"):
        notes += f" Memory: {memory}."
    notes += " Padding: share of what the model was given (seconds of audio, tokens)"
    notes += " or computed (modelled FLOPs)."
    return [*parts, Paragraph(notes, muted=True)]


def _figure_cells(throughput: Throughput, role: str, measure: Measure) -> list[Cell]:
    figure = throughput.figure(role, measure)
    if figure is None:
        return ["not measured" if measure.key in ("gpu", "cpu") else NOTHING, ""]
    shown = _SHOWN[measure.kind]
    spread = _range(figure.low, figure.high, shown)
    if figure.window_median is not None and spread:
        spread += f", median\u00a0{_joined(shown(figure.window_median))}"
    return [_number(figure.value, shown), spread]


def _joined(text: str) -> str:
    """The text without a place for a line break."""
    return text.replace(" ", "\u00a0")


def _number(value: float | None, shown: Callable[[float], str]) -> Cell:
    return NOTHING if value is None else Number(round(value, 6), _joined(shown(value)))


def _range(low: float, high: float, shown: Callable[[float], str]) -> str:
    """`94.0–96.0 %`; nothing if both ends look the same."""
    first, last = _joined(shown(low)), _joined(shown(high))
    unit = last.partition("\u00a0")[2]
    return "" if first == last else f"{first.removesuffix(unit).rstrip()}{_TO}{last}"


def _change(throughput: Throughput, measure: Measure) -> Cell:
    """How many times; of shares, the difference in percentage points."""
    ours, theirs = throughput.figure("bench", measure), throughput.figure("baseline", measure)
    if measure.kind == "share" and ours and theirs:
        return _number(100 * (ours.value - theirs.value), lambda v: f"{v:+.1f} points".replace("-", "−"))
    return _number(throughput.ratio(measure.key), lambda ratio: f"{ratio:.2f} ×")


def _stability(runs: list[Any]) -> str:
    if broken := [run for run in runs if not run.finished]:
        return f"{broken[0].done_steps} steps, then: {broken[0].failed or 'not finished'}"
    return f"{max(run.done_steps for run in runs)} steps, clean"


def _phases(throughput: Throughput, drawing: Drawing) -> list[Any]:
    shares = {name: throughput.shares(role) for role, name in throughput.role_names}
    bench = throughput.shares("bench")
    wait = human_share(bench["decode"] + bench["data_wait"])
    text = f"Millrace's training waits {wait} of its time for data. "
    if (headroom := throughput.headroom()) is None:
        text += "No run with an ideal loader shows how much faster it could be."
    else:
        text += f"With a loader that costs nothing it is {headroom:.2f} times as fast"
        left = f": {100 * (headroom - 1):.1f} % of headroom is left."
        text += left if headroom > 1 else ": there is no headroom left, within what runs differ."

    rows = []
    for phase in PHASES:
        name = PHASE_STYLES[phase][0]
        cells = [_number(part[phase], human_share) for part in shares.values()]
        rows.append([name[0].upper() + name[1:], *cells])
    total = ["All", *(_number(math.fsum(part.values()), human_share) for part in shares.values())]
    note = "Gradients travel between ranks during the backward pass. "
    workers = throughput.figure("bench", Measure("", "", "share", lambda run: run.use("workers_cpu")))
    if workers is not None and workers.value > 0:
        note += f"Our workers read and decode meanwhile, with {percent(workers.value)} of the CPU cores."
    table = Table("Share of time by phase", ["Phase", *shares], rows, total)
    return [Paragraph(text), drawing, table, Paragraph(note, muted=True)]


def _buckets(throughput: Throughput) -> Table | Paragraph:
    filled = [bucket for bucket in throughput.buckets if bucket.rows]
    hours, seen = math.fsum(b.hours for b in filled), math.fsum(b.seen_seconds for b in filled)
    if not seen:
        return Paragraph("The runs hold no steps.jsonl, or no bucket configuration was given.", muted=True)
    rows: list[list[Cell]] = []
    for bucket in filled:
        cells: list[Cell] = [Code(bucket.name), _number(bucket.steps, human_count)]
        for figure, scale, shown in ((bucket.seconds, 1000, rate), (bucket.batch, 1, human_count)):
            cells.append(_number(figure and figure.value * scale, shown))
            cells.append(_range(figure.low * scale, figure.high * scale, shown) if figure else "")
        cells += [_number(bucket.rate or None, rate), _number(bucket.padding, human_share)]
        cells.append(_number(bucket.peak_memory or None, human_bytes))
        shares = (bucket.seen_seconds / seen, bucket.hours / hours if hours else None)
        rows.append([*cells, *(_number(share, human_share) for share in shares)])
    columns = ["Bucket", "Steps", "Step (ms)", "range", "Batch (samples)", "range", "Audio-s/s", "Padding"]
    columns += ["Peak memory", "Share of audio", "Share of hours"]
    return Table("Our steps by bucket", columns, rows)


def _profile(throughput: Throughput) -> list[Any]:
    run = next((run for run in throughput.profile if run.profile), None)
    if run is None:
        return []
    facts, whole = run.profile, run.profile["seconds"]
    clocks = ["host", "device"] if facts["device"] == "cuda" else ["host"]

    def milliseconds(row: dict[str, Any]) -> list[Cell]:
        return [_number(1000 * row[f"{clock}_seconds"] / facts["steps"], rate) for clock in clocks]

    phases = [
        [
            row["phase"],
            *milliseconds(row),
            _number(row["host_seconds"] / whole if whole else None, human_share),
        ]
        for row in facts["phases"]
    ]
    operators = [
        [Code(row["operator"]), _number(row["calls"], human_count), *milliseconds(row)]
        for row in facts["operators"]
    ]
    text = f"{facts['steps']} steps under PyTorch's profiler, which slows them down: shares count, not rates."
    text += f" The trace is {facts['trace']} in the folder of run {run.name}; open it with Perfetto."
    text += " What follows “forward:” are parts of the forward pass."
    if busy := facts.get("device_busy_seconds"):
        text += f" The GPU ran kernels in {human_share(busy, whole)} of the time."
    times = ["Host, per step (ms)", "GPU, per step (ms)"][: len(clocks)]
    return [
        Paragraph(text),
        Table("Time of the profiled steps by phase", ["Phase", *times, "Share of host"], phases),
        Table("Operators that take most, without what they call", ["Operator", "Calls", *times], operators),
    ]


def _runs(throughput: Throughput) -> Table:
    rows: list[list[Cell]] = []
    for role in ("baseline", "bench", "ideal", "check", "profile"):
        for run in getattr(throughput, role):
            seconds = math.fsum(line["seconds"] for line in run.windows)
            cells: list[Cell] = [Code(run.name), _ROLES.get(role, role), _number(run.done_steps, human_count)]
            cells += [_number(seconds, lambda value: f"{rate(value)} s"), _number(run.world_size, str)]
            cells.append("finished" if run.finished else run.failed or "not finished")
            settings = {key: run.facts.get(key) for key in _SETTINGS}
            shown = [f"{key} {value}" for key, value in settings.items() if value not in (None, "")]
            rows.append([*cells, ", ".join(shown)])
    return Table("Runs", ["Run", "Kind", "Steps", "Training", "Ranks", "State", "Settings"], rows)
