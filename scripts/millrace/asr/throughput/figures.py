"""The figures of the throughput report, as SVG: baseline against Millrace, time by phase, buckets."""

from __future__ import annotations

import math

from millrace.asr.throughput.comparison import UNIT_NAMES, Throughput
from millrace.asr.throughput.criteria import MEASURE, rate
from millrace.asr.throughput.run import PHASES, UNITS
from millrace.common.report.figures import (
    INK,
    PALETTE,
    REST,
    Panel,
    bar_chart,
    human_bytes,
    human_count,
    human_share,
)

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
    """Rates, padding and use of the machine, one bar for each kind of loader; hairlines are ranges."""
    ratio = throughput.ratio("samples")
    title = "Training throughput: baseline against Millrace" if throughput.baseline else "Training throughput"
    subtitle = f"{ratio:.2f} times the samples/s" if ratio else "no run of the baseline to compare with"
    subtitle += f", on {throughput.device if throughput.on_gpu else 'the CPU'}; hairlines are ranges"
    use = "gpu" if any(throughput.figure(role, MEASURE["gpu"]) for role in ROLE_COLOURS) else "cpu"
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
            if (rows is not padding or role != "ideal") and (figure := throughput.figure(role, MEASURE[key]))
        ]
        scale = 1 if rows[0][1] in ("samples", "audio_seconds") else 100
        panel = Panel(
            label,
            names=[name for name, *_ in bars],
            series=[([colour for _, colour, _ in bars], [figure.value * scale for *_, figure in bars])],
            notes=[rate(figure.value) if scale == 1 else human_share(figure.value) for *_, figure in bars],
            ranges=[(figure.low * scale, figure.high * scale) for *_, figure in bars],
        )
        panels.append(panel)
    return bar_chart(title, subtitle, panels, columns=2)


def phases(throughput: Throughput) -> str:
    """Time for an hour of audio, stacked by phase: shorter is faster."""
    clock = "of the GPU" if throughput.on_gpu else "wall clock"
    subtitle = f"Training time ({clock}) by phase; shorter is faster. At the end: the share spent on data"
    audio = {role: throughput.figure(role, MEASURE["audio_seconds"]) for role, _ in throughput.role_names}
    bars = [
        (name, 3600 / audio[role].value, throughput.shares(role))
        for role, name in throughput.role_names
        if audio[role] and audio[role].value > 0
    ]
    used = [phase for phase in PHASES if any(shares[phase] >= 0.0005 for *_, shares in bars)]
    notes = [
        f"{rate(seconds)} s, {human_share(shares['decode'] + shares['data_wait'])} data"
        for _, seconds, shares in bars
    ]
    series = [
        (PHASE_STYLES[phase][1], [seconds * shares[phase] for _, seconds, shares in bars]) for phase in used
    ]
    panel = Panel("Seconds for an hour of audio", [name for name, *_ in bars], series, notes)
    legend = [PHASE_STYLES[phase] for phase in used]
    nothing = "The runs do not say how many seconds of audio they read."
    return bar_chart("Time for an hour of audio", subtitle, [panel], legend, nothing=nothing)


def buckets(throughput: Throughput) -> str:
    """Step time, batch and memory of every bucket, and its share of the audio against its share of the
    hours."""
    title, subtitle = "Steps by bucket", "Medians of our steps; hairlines from the smallest to the largest"
    filled = [bucket for bucket in throughput.buckets if bucket.rows]
    shown = filled[:MAX_BUCKETS]
    if len(filled) > len(shown):
        subtitle += f"; the first {MAX_BUCKETS} of {len(filled)}"
    seen = math.fsum(bucket.seen_seconds for bucket in throughput.buckets)
    if not any(bucket.seen_seconds for bucket in shown):
        return bar_chart(title, subtitle, [], nothing="No steps were recorded by bucket.")

    short = max((bucket.seconds.high for bucket in shown if bucket.seconds), default=2) < 2
    memory = [bucket.peak_memory or 0 for bucket in shown]
    panels = []
    for label, scale, text, figures in (
        ("Step (ms)" if short else "Step (s)", 1000 if short else 1, rate, [b.seconds for b in shown]),
        ("Batch (samples)", 1, human_count, [b.batch for b in shown]),
    ):
        lengths = [figure.value * scale if figure else 0.0 for figure in figures]
        notes = [text(figure.value * scale) if figure else "–" for figure in figures]
        ranges = [(figure.low * scale, figure.high * scale) if figure else (0, 0) for figure in figures]
        names = [] if panels else [bucket.name for bucket in shown]
        panels.append(Panel(label, names, [(PALETTE[0], lengths)], notes, ranges))
    notes = [rate(size / 1e9) if size else "–" for size in memory]
    panels.append(Panel("Peak memory (GB)", [], [(PALETTE[0], [size / 1e9 for size in memory])], notes))
    audio = [bucket.seen_seconds / seen for bucket in shown]
    hours = math.fsum(bucket.hours for bucket in throughput.buckets)
    marks = [100 * bucket.hours / hours if hours else 0.0 for bucket in shown]
    lengths, notes = [100 * share for share in audio], [human_share(share) for share in audio]
    panels.append(Panel("Share of audio (%)", [], [(PALETTE[2], lengths)], notes, marks=marks))
    if any(memory):
        subtitle += f". Largest memory {human_bytes(max(memory))}"
    legend = [
        ("our steps", PALETTE[0]),
        ("share of the audio", PALETTE[2]),
        ("line: share of the hours", INK),
    ]
    return bar_chart(title, subtitle, panels, legend, columns=4)
