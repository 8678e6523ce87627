"""The throughput report as a page: what was to be reached, old against new, phases, buckets, runs."""

from __future__ import annotations

import math
from collections.abc import Mapping

from millrace.asr.throughput.comparison import MEASURES, Measure, Statistic, Throughput
from millrace.asr.throughput.criteria import PASS, UNKNOWN, Criterion, percent, rate
from millrace.asr.throughput.figures import PHASE_NAMES
from millrace.asr.throughput.run import PHASES, Run
from millrace.common.report.figures import human_bytes, human_count, human_share, inline_svg
from millrace.common.report.page import Cell, Code, Number, Section, Table, figure, page, paragraph

TITLE = "Training throughput"
NOTHING = "–"
_TO = "\u2060–\u2060"  # no line ends within a range


def render(found: Throughput, judged: list[Criterion], svgs: Mapping[str, str]) -> str:
    """The page; `svgs` are the figures comparison, phases and buckets."""
    shown = {name: figure(inline_svg(svg, name)) for name, svg in svgs.items()}
    sections = [
        Section("criteria", "Success criteria", _criteria(judged)),
        Section(
            "comparison", "Old against new", [_told_ranges(found), shown["comparison"], _comparison(found)]
        ),
        Section("phases", "Where the time goes", [*_headroom(found), shown["phases"], _phases(found)]),
        Section("buckets", "Buckets", [shown["buckets"], *_buckets(found)]),
        *(
            [Section("profile", "Profile", _profile(found))]
            if any(run.profile for run in found.profile)
            else []
        ),
        Section("runs", "Runs", _runs(found)),
    ]
    return page(TITLE, _lead(found), _tiles(found, judged), sections)


def _lead(found: Throughput) -> str:
    machine = found.bench[0].machine
    ranks = found.bench[0].world_size
    place = found.device if found.on_gpu else f"CPU ({machine.get('cpu', 'unknown')})"
    parts = [f"Measured on {ranks} × {place}" if found.on_gpu or ranks > 1 else f"Measured on {place}"]
    if machine.get("device_memory_bytes"):
        parts.append(f"{human_bytes(machine['device_memory_bytes'])} of GPU memory")
    if machine.get("cores"):
        parts.append(f"{machine['cores']:g} CPU cores")
    if machine.get("torch"):
        parts.append(f"PyTorch {machine['torch']}")
    lead = ", ".join(parts) + "."
    return lead if found.on_gpu else lead + " There was no GPU: GPU use and GPU memory were not measured."


def _tiles(found: Throughput, judged: list[Criterion]) -> list[tuple[str, Number]]:
    tiles: list[tuple[str, Number]] = []
    if (ratio := found.ratio("samples")) is not None:
        tiles.append(("Faster than naive", Number(ratio, f"{ratio:.2f} ×")))
    for key, label in (("samples", "Samples/s"), ("audio_seconds", "Audio-s/s")):
        if value := found.figure("bench", _measure(key)):
            tiles.append((label, Number(value.value, rate(value.value))))
    for key, label in (("padding_audio_seconds", "Padding"), ("waiting", "Waiting for data")):
        if value := found.figure("bench", _measure(key)):
            tiles.append((label, Number(value.value, human_share(value.value, 1))))
    use = "gpu" if found.figure("bench", _measure("gpu")) else "cpu"
    if value := found.figure("bench", _measure(use)):
        tiles.append((f"{use.upper()} use", Number(value.value, human_share(value.value, 1))))
    passed = sum(criterion.status == PASS for criterion in judged)
    tiles.append(("Criteria met", Number(passed, f"{passed} of {len(judged)}")))
    return tiles


def _measure(key: str) -> Measure:
    return next(measure for measure in MEASURES if measure.key == key)


def _criteria(judged: list[Criterion]) -> list[str]:
    parts = []
    captions = {
        "seed": "What a run of 200 steps has to reach",
        "project": "What the project wants beyond that",
    }
    for group, caption in captions.items():
        signs = {PASS: "✓\u00a0pass", UNKNOWN: "not\u00a0measured"}
        rows: list[list[Cell]] = [
            [criterion.name, criterion.bar, signs.get(criterion.status, "✗\u00a0fail"), criterion.figure]
            for criterion in judged
            if criterion.group == group
        ]
        parts.append(Table(caption, ["Criterion", "Bar", "Result", "Found"], rows).html())
    return parts


def _told_ranges(found: Throughput) -> str:
    def told(role: str) -> str:
        count = len(getattr(found, role))
        return f"{count} runs" if count > 1 else "1 run"

    runs = ", ".join(f"{name} {told(role)}" for role, name in found.role_names)
    text = f"{runs}. Figures are of whole runs, but for the first line of the log (start of workers, allocations)."
    text += " With several runs: their median, and the range from the lowest to the highest. With one: the range of the"
    text += " lines of its log, whose batches are of other buckets, and their median."
    if found.ideal:
        text += " The ideal loader replays batches from memory."
    return paragraph(text)


def _comparison(found: Throughput) -> str:
    rows: list[list[Cell]] = []
    compared = bool(found.baseline)
    for measure in MEASURES:
        cells: list[Cell] = [measure.name]
        for role, _ in found.role_names:
            value = _figure_cells(found.figure(role, measure), measure)
            cells += value if role != "ideal" else value[:1]
            cells += [_change(found, measure)] if role == "bench" and compared else []
        rows.append(cells)
    steady: list[Cell] = ["Stability"]
    columns = [""]
    for role, name in found.role_names:
        columns += [name, "range"] if role != "ideal" else [name]
        columns += ["against naive"] if role == "bench" and compared else []
        steady += [_stability(getattr(found, role)), *[""] * (len(columns) - len(steady) - 1)]
    rows.append(steady)
    table = Table("Old against new", columns, rows).html()
    notes = (
        [paragraph(f"Not comparable: {'; '.join(differences)}.")]
        if (differences := found.differences())
        else []
    )
    memory = found.bench[0].facts.get("memory_is")
    told = [
        "CPU use: of the trainer and its workers, as a share of the cores.",
        "GPU use: of NVML, the share of time in which a kernel ran."
        if found.on_gpu
        else "GPU use: not measured.",
        f"Memory: {memory}." if memory else "",
        "Padding: share of what the model was given (seconds of audio, tokens) or computed (modelled FLOPs).",
    ]
    return table + "".join(notes) + paragraph(" ".join(filter(None, told)), True)


def _figure_cells(value: Statistic | None, measure: Measure) -> list[Cell]:
    if value is None:
        return ["not measured" if measure.key in ("gpu", "cpu") else NOTHING, ""]

    spread = _range(value.low, value.high, measure.kind)
    if value.window_median is not None and spread:
        spread += f", median\u00a0{_text(value.window_median, measure.kind)}"
    return [Number(round(value.value, 6), _text(value.value, measure.kind)), spread]


def _text(number: float, kind: str) -> str:
    shown = (
        human_bytes(number)
        if kind == "bytes"
        else human_share(number, 1)
        if kind == "share"
        else rate(number)
    )
    return shown.replace(" ", "\u00a0")


def _range(low: float, high: float, kind: str = "rate") -> str:
    """`94.0–96.0 %`; nothing where both ends look the same."""
    first, last = _text(low, kind), _text(high, kind)
    if first == last:
        return ""
    unit = last.partition("\u00a0")[2]
    return f"{first.removesuffix(unit).rstrip() if unit and first.endswith(unit) else first}{_TO}{last}"


def _change(found: Throughput, measure: Measure) -> Cell:
    """How many times; of shares, the difference in percentage points."""
    ratio = found.ratio(measure.key)
    new, old = found.figure("bench", measure), found.figure("baseline", measure)
    if measure.kind == "share" and new and old:
        points = 100 * (new.value - old.value)
        return Number(round(points, 4), f"{points:+.1f} points".replace("-", "−"))
    return NOTHING if ratio is None else Number(round(ratio, 4), f"{ratio:.2f} ×")


def _stability(runs: list[Run]) -> str:
    if broken := [run for run in runs if not run.finished]:
        return f"{broken[0].done_steps} steps, then: {broken[0].failed or 'not finished'}"
    return f"{max(run.done_steps for run in runs)} steps, clean"


def _headroom(found: Throughput) -> list[str]:
    headroom = found.headroom()
    waits = found.shares("bench")
    wait = waits["decode"] + waits["data_wait"]
    text = f"Millrace's training waits {human_share(wait, 1)} of its time for data. "
    if headroom is None:
        return [paragraph(text + "No run with an ideal loader shows how much faster it could be.")]
    gain = 100 * (headroom - 1)
    text += f"With a loader that costs nothing it is {headroom:.2f} times as fast"
    text += (
        f": {gain:.1f} % of headroom is left."
        if gain > 0
        else ": there is no headroom left, within what runs differ."
    )
    return [paragraph(text)]


def _phases(found: Throughput) -> str:
    shares = {role: found.shares(role) for role, _ in found.role_names}
    rows: list[list[Cell]] = []
    for name in PHASES:
        cells: list[Cell] = [PHASE_NAMES[name][:1].upper() + PHASE_NAMES[name][1:]]
        rows.append(
            [*cells, *(Number(round(part[name], 6), human_share(part[name], 1)) for part in shares.values())]
        )
    total = ["All", *(Number(1, human_share(math.fsum(part.values()), 1)) for part in shares.values())]
    table = Table(
        "Share of time by phase", ["Phase", *(name for _, name in found.role_names)], rows, total
    ).html()
    told = "Gradients travel between ranks during the backward pass. "
    workers = found.figure("bench", Measure("", "", "share", lambda run: run.use("workers_cpu")))
    if workers is not None and workers.value > 0:
        told += f"Our workers read and decode meanwhile, with {percent(workers.value)} of the CPU cores."
    return table + paragraph(told, True)


def _buckets(found: Throughput) -> list[str]:
    held = [bucket for bucket in found.buckets if bucket.rows]
    if not any(bucket.seen_seconds for bucket in held):
        return [paragraph("The runs hold no steps.jsonl, or no bucket configuration was given.", True)]
    hours, seen = math.fsum(b.hours for b in held), math.fsum(b.seen_seconds for b in held)
    rows: list[list[Cell]] = []
    for bucket in held:
        cells: list[Cell] = [Code(bucket.name), Number(bucket.steps, human_count(bucket.steps))]
        cells += [
            _seconds(bucket.seconds),
            _spread(bucket.seconds, 1000),
            _count(bucket.batch),
            _spread(bucket.batch, 1),
        ]
        cells.append(Number(bucket.rate, rate(bucket.rate)) if bucket.rate else NOTHING)
        cells.append(_share(bucket.padding))
        size = bucket.peak_memory
        cells.append(Number(size, human_bytes(size)) if size else NOTHING)
        cells += [_share(bucket.seen_seconds / seen), _share(bucket.hours / hours if hours else None)]
        rows.append(cells)
    columns = [
        "Bucket",
        "Steps",
        "Step (ms)",
        "range",
        "Batch",
        "range",
        "Audio-s/s",
        "Padding",
        "Peak memory",
    ]
    return [Table("Our steps by bucket", [*columns, "Share of audio", "Share of hours"], rows).html()]


def _seconds(value: Statistic | None) -> Cell:
    return Number(round(1000 * value.value, 3), rate(1000 * value.value)) if value else NOTHING


def _count(value: Statistic | None) -> Cell:
    return Number(value.value, human_count(value.value)) if value else NOTHING


def _spread(value: Statistic | None, scale: float) -> str:
    if value is None:
        return ""
    low, high = value.low * scale, value.high * scale
    whole = scale == 1  # samples
    return (f"{low:,.0f}{_TO}{high:,.0f}" if high > low else "") if whole else _range(low, high)


def _share(value: float | None) -> Cell:
    return NOTHING if value is None else Number(round(value, 6), human_share(value, 1))


def _profile(found: Throughput) -> list[str]:
    run = next(run for run in found.profile if run.profile)
    facts, on_gpu = run.profile, run.profile["device"] == "cuda"
    whole = facts["seconds"]
    rows: list[list[Cell]] = []
    for phase in facts["phases"]:
        cells: list[Cell] = [phase["phase"], _milliseconds(phase["host_seconds"] / facts["steps"])]
        cells.append(_share(phase["host_seconds"] / whole if whole else None))
        rows.append([*cells, *([_milliseconds(phase["device_seconds"] / facts["steps"])] if on_gpu else [])])
    columns = ["Phase", "Host, per step (ms)", "Share", *(["GPU, per step (ms)"] if on_gpu else [])]
    operators: list[list[Cell]] = []
    for operator in facts["operators"]:
        cells = [Code(operator["operator"]), Number(operator["calls"], human_count(operator["calls"]))]
        cells.append(_milliseconds(operator["host_seconds"] / facts["steps"]))
        operators.append(
            [*cells, *([_milliseconds(operator["device_seconds"] / facts["steps"])] if on_gpu else [])]
        )
    names = ["Operator", "Calls", "Host, per step (ms)", *(["GPU, per step (ms)"] if on_gpu else [])]
    told = f"{facts['steps']} steps under PyTorch's profiler, which slows them down: shares count here, not rates. "
    told += f"The trace is {facts['trace']} in the folder of run {run.name}; open it with Perfetto. "
    told += "What follows “forward:” are parts of the forward pass."
    if busy := facts.get("device_busy_seconds"):
        told += f" The GPU ran kernels in {human_share(busy, whole)} of the time."
    return [
        paragraph(told),
        Table("Time of the profiled steps by phase", columns, rows).html(),
        Table("Operators that take most, without what they call", names, operators).html(),
    ]


def _milliseconds(seconds: float) -> Number:
    return Number(round(1000 * seconds, 4), rate(1000 * seconds))


def _runs(found: Throughput) -> list[str]:
    roles = {
        "baseline": "naive",
        "bench": "benchmark",
        "ideal": "ideal loader",
        "check": "check",
        "profile": "profile",
    }
    rows: list[list[Cell]] = []
    for role, name in roles.items():
        for run in getattr(found, role):
            state = "finished" if run.finished else run.failed or "not finished"
            seconds = math.fsum(line["seconds"] for line in run.windows)
            cells: list[Cell] = [Code(run.name), name, Number(run.done_steps, human_count(run.done_steps))]
            cells += [
                Number(round(seconds, 3), f"{rate(seconds)} s"),
                Number(run.world_size, str(run.world_size)),
            ]
            settings = ", ".join(
                f"{key} {run.facts[key]}" for key in _SETTINGS if run.facts.get(key) not in (None, "")
            )
            rows.append([*cells, state, settings])
    return [Table("Runs", ["Run", "Kind", "Steps", "Training", "Ranks", "State", "Settings"], rows).html()]


_SETTINGS = (
    "model",
    "precision",
    "loader",
    "batch_size",
    "batch_seconds",
    "num_workers",
    "gradient_checkpointing",
)
