"""The figures of the throughput report, as SVG: baseline against Millrace, time by phase,
buckets."""

from __future__ import annotations

import math

from millrace.asr.throughput.comparison import UNIT_NAMES, Throughput
from millrace.asr.throughput.criteria import rate
from millrace.common.report import figures
from millrace.common.report.figures import INK, PALETTE, REST, Panel, human_share
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
    title, subtitle = (
        "Steps by bucket",
        "Medians of our steps; hairlines from the smallest to the largest",
    )
    filled = [bucket for bucket in throughput.buckets if bucket.rows]
    shown = filled[:MAX_BUCKETS]
    if len(filled) > len(shown):
        subtitle += f"; the first {MAX_BUCKETS} of {len(filled)}"
    if not any(bucket.seen_seconds for bucket in shown):
        return figures.bar_chart(title, subtitle, [], nothing="No steps were recorded by bucket.")

    short = max((bucket.seconds.high for bucket in shown if bucket.seconds), default=2) < 2
    unit, scale = ("ms", 1000) if short else ("s", 1)
    steps = f"Step ({unit})", scale, rate, [bucket.seconds for bucket in shown]
    batches = "Batch (samples)", 1, figures.human_count, [bucket.batch for bucket in shown]
    names = [bucket.name for bucket in shown]
    panels: list[Panel] = []
    for label, scale, text, parts in (steps, batches):
        lengths = [part.value * scale if part else 0.0 for part in parts]
        notes = [text(part.value * scale) if part else "–" for part in parts]
        ranges = [(part.low * scale, part.high * scale) if part else (0, 0) for part in parts]
        panels.append(Panel(label, [] if panels else names, [(PALETTE[0], lengths)], notes, ranges))
    memory = [(bucket.peak_memory or 0) / 1e9 for bucket in shown]
    notes = [rate(size) if size else "–" for size in memory]
    panels.append(Panel("Peak memory (GB)", [], [(PALETTE[0], memory)], notes))
    seen = math.fsum(bucket.seen_seconds for bucket in throughput.buckets)
    audio = [bucket.seen_seconds / seen for bucket in shown]
    hours = math.fsum(bucket.hours for bucket in throughput.buckets)
    marks = [100 * bucket.hours / hours if hours else 0.0 for bucket in shown]
    lengths, notes = [100 * share for share in audio], [human_share(share) for share in audio]
    panels.append(Panel("Share of audio (%)", [], [(PALETTE[2], lengths)], notes, marks=marks))
    if any(memory):
        subtitle += (
            f". Largest memory {figures.human_bytes(max(b.peak_memory or 0 for b in shown))}"
        )
    legend = [("our steps", PALETTE[0]), ("share of the audio", PALETTE[2])]
    legend.append(("line: share of the hours", INK))
    return figures.bar_chart(title, subtitle, panels, legend, columns=4)
