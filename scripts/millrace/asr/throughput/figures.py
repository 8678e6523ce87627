"""The figures of the throughput report, as SVG: baseline against Millrace, time by phase,
buckets."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from millrace.asr.throughput.comparison import UNIT_NAMES, Bucket, Statistic, Throughput
from millrace.asr.throughput.criteria import rate
from millrace.common.report import figures
from millrace.common.report.figures import INK, PALETTE, REST, Panel, human_count, human_share
from millrace.common.throughput.run import PHASES, UNITS

MAX_BUCKETS = 40
ROLE_COLOURS = {"baseline": REST, "bench": PALETTE[0], "ideal": PALETTE[4]}
# Name and colour of each phase of a step.
PHASE_STYLES = {
    "decode": ("read and decode in the trainer", PALETTE[5]),
    "data_wait": ("wait for data", PALETTE[1]),
    "copy": ("copy to the device", PALETTE[6]),
    "forward": ("forward", PALETTE[0]),
    "backward": ("backward", PALETTE[4]),
    "sync": ("wait for other ranks", PALETTE[3]),
    "optimiser": ("optimiser", PALETTE[2]),
    "idle": ("rest", REST),
}


def comparison(throughput: Throughput) -> str:
    """Rates, padding and use of the machine, one bar for each kind of loader; hairlines are
    ranges."""
    ratio = throughput.ratio("samples")
    title = (
        "Training throughput: baseline against Millrace"
        if throughput.baseline
        else "Training throughput"
    )
    subtitle = "no run of the baseline to compare with"
    if ratio:
        ours, theirs = (
            rate(throughput.known_figure(role, "samples").value) for role in ("bench", "baseline")
        )
        subtitle = f"{ratio:.2f} times the samples/s ({ours} against {theirs})"
    subtitle += (
        f", on {throughput.device if throughput.on_gpu else 'the CPU'}; hairlines are ranges"
    )
    use = "gpu" if any(throughput.figure(role, "gpu") for role in ROLE_COLOURS) else "cpu"
    padding = [(f": {UNIT_NAMES[unit]}", f"padding_{unit}") for unit in UNITS]
    panels = []
    for label, rows in (
        ("Samples per second", [("", "samples")]),
        ("Seconds of audio per second", [("", "audio_seconds")]),
        ("Padding (%)", padding),
        ("GPU use (%)" if use == "gpu" else "CPU use (% of the cores)", [("", use)]),
    ):
        bars = [
            (name + suffix, ROLE_COLOURS[role], figure)
            for suffix, key in rows
            for role, name in throughput.role_names
            if (rows is not padding or role != "ideal") and (figure := throughput.figure(role, key))
        ]
        scale, shown = (
            (1, rate) if rows[0][1] in ("samples", "audio_seconds") else (100, human_share)
        )
        panel = Panel(
            label,
            names=[name for name, *_ in bars],
            series=[
                ([colour for _, colour, _ in bars], [figure.value * scale for *_, figure in bars])
            ],
            notes=[shown(figure.value) for *_, figure in bars],
            ranges=[(figure.low * scale, figure.high * scale) for *_, figure in bars],
        )
        panels.append(panel)
    return figures.bar_chart(title, subtitle, panels, columns=2)


def phases(throughput: Throughput) -> str:
    """Time for an hour of audio, stacked by phase: shorter is faster."""
    clock = "of the GPU" if throughput.on_gpu else "wall clock"
    subtitle = (
        f"Training time ({clock}) by phase; shorter is faster. At the end: the share spent on data"
    )
    names, bars, notes = [], [], []
    for role, name in throughput.role_names:
        audio, shares = throughput.figure(role, "audio_seconds"), throughput.shares(role)
        if audio and audio.value > 0:
            names.append(name)
            bars.append((3600 / audio.value, shares))
            notes.append(
                f"{rate(bars[-1][0])} s, {human_share(shares['decode'] + shares['data_wait'])} data"
            )
    used = [phase for phase in PHASES if any(shares[phase] >= 0.0005 for _, shares in bars)]
    legend = [PHASE_STYLES[phase] for phase in used]
    parts = [[seconds * shares[phase] for seconds, shares in bars] for phase in used]
    series = [(colour, part) for (_, colour), part in zip(legend, parts, strict=True)]
    panel = Panel("Seconds for an hour of audio", names, series, notes)
    nothing = "The runs do not say how many seconds of audio they read."
    return figures.bar_chart(
        "Time for an hour of audio", subtitle, [panel], legend, nothing=nothing
    )


def buckets(throughput: Throughput) -> str:
    """Step time, batch and memory of every bucket, and its share of the audio and of the hours."""
    title = "Steps by bucket"
    filled = [bucket for bucket in throughput.buckets if bucket.rows]
    shown = filled[:MAX_BUCKETS]
    if not any(bucket.seen_seconds for bucket in shown):
        subtitle = _buckets_subtitle(len(filled), largest_memory=0)
        nothing = "No steps were recorded by bucket."
        return figures.bar_chart(title, subtitle, [], nothing=nothing)

    panels = [
        _step_panel(shown),
        _statistics_panel("Batch (samples)", [bucket.batch for bucket in shown], 1, human_count),
        _memory_panel(shown),
        _share_panel(shown, throughput.buckets),
    ]
    legend = [
        ("our steps", PALETTE[0]),
        ("share of the audio", PALETTE[2]),
        ("line: share of the hours", INK),
    ]
    largest_memory = max(bucket.peak_memory or 0 for bucket in shown)
    subtitle = _buckets_subtitle(len(filled), largest_memory)
    return figures.bar_chart(title, subtitle, panels, legend, columns=4)


def _buckets_subtitle(filled: int, largest_memory: float) -> str:
    subtitle = "Medians of our steps; hairlines from the smallest to the largest"
    if filled > MAX_BUCKETS:
        subtitle += f"; the first {MAX_BUCKETS} of {filled}"
    if largest_memory:
        subtitle += f". Largest memory {figures.human_bytes(largest_memory)}"
    return subtitle


def _step_panel(shown: Sequence[Bucket]) -> Panel:
    """Step times, in milliseconds if all are below two seconds; names the buckets."""
    steps = [bucket.seconds for bucket in shown]
    longest = max((step.high for step in steps if step), default=2.0)
    names = [bucket.name for bucket in shown]
    if longest < 2:
        return _statistics_panel("Step (ms)", steps, 1000, rate, names)
    return _statistics_panel("Step (s)", steps, 1, rate, names)


def _statistics_panel(
    label: str,
    statistics: Sequence[Statistic | None],
    scale: float,
    shown_as: Callable[[float], str],
    names: Sequence[str] = (),
) -> Panel:
    """Medians with their ranges; a bucket without steps has a dash."""
    medians, notes, ranges = [], [], []
    for statistic in statistics:
        if statistic is None:
            medians.append(0.0)
            notes.append("–")
            ranges.append((0.0, 0.0))
            continue
        medians.append(statistic.value * scale)
        notes.append(shown_as(statistic.value * scale))
        ranges.append((statistic.low * scale, statistic.high * scale))
    return Panel(label, names, [(PALETTE[0], medians)], notes, ranges)


def _memory_panel(shown: Sequence[Bucket]) -> Panel:
    memory = [(bucket.peak_memory or 0) / 1e9 for bucket in shown]
    notes = [rate(size) if size else "–" for size in memory]
    return Panel("Peak memory (GB)", [], [(PALETTE[0], memory)], notes)


def _share_panel(shown: Sequence[Bucket], of_all: Sequence[Bucket]) -> Panel:
    """What of the audio that was read came from a bucket; marked: what of the hours lies there."""
    seen = math.fsum(bucket.seen_seconds for bucket in of_all)
    hours = math.fsum(bucket.hours for bucket in of_all)
    shares = [bucket.seen_seconds / seen for bucket in shown]
    marks = [100 * bucket.hours / hours if hours else 0.0 for bucket in shown]
    lengths = [100 * share for share in shares]
    notes = [human_share(share) for share in shares]
    return Panel("Share of audio (%)", [], [(PALETTE[2], lengths)], notes, marks=marks)
