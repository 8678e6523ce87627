"""The figures of the throughput report, as SVG: old against new, time by phase, buckets."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from millrace.asr.throughput.comparison import MEASURES, UNIT_NAMES, Bucket, Statistic, Throughput
from millrace.asr.throughput.criteria import rate
from millrace.asr.throughput.run import PHASES, UNITS
from millrace.common.report import figures
from millrace.common.report.figures import PALETTE, REST, Sheet, human_bytes, human_count, human_share

WIDTH = 9.0
MOST_BUCKETS = 40
ROLE_COLOURS = {"baseline": REST, "bench": PALETTE[0], "ideal": PALETTE[4]}
PHASE_NAMES = {
    "decode": "read and decode in the trainer",
    "data_wait": "wait for data",
    "copy": "copy to the device",
    "forward": "forward",
    "backward": "backward",
    "sync": "wait for other ranks",
    "optimiser": "optimiser",
    "idle": "rest",
}
PHASE_COLOURS = {
    "decode": PALETTE[5],
    "data_wait": PALETTE[1],
    "copy": PALETTE[6],
    "forward": PALETTE[0],
    "backward": PALETTE[4],
    "sync": PALETTE[3],
    "optimiser": PALETTE[2],
    "idle": REST,
}
_PITCH = 0.3


def comparison(found: Throughput) -> str:
    """Rates, padding and use of the machine, one bar for each kind of loader; hairlines are ranges."""
    title = (
        "Training throughput: naive pipeline against Millrace" if found.baseline else "Training throughput"
    )
    ratio, measures = found.ratio("samples"), {measure.key: measure for measure in MEASURES}
    subtitle = f"{ratio:.2f} times the samples/s" if ratio else "no run of the naive pipeline to compare with"
    subtitle += f", on {found.device if found.on_gpu else 'the CPU'}"
    roles = found.role_names
    panels: list[tuple[str, list[tuple[str, str, Statistic]], Callable[[float], str], float]] = []
    for key, label in (("samples", "Samples per second"), ("audio_seconds", "Seconds of audio per second")):
        bars = [(name, role, found.figure(role, measures[key])) for role, name in roles]
        panels.append((label, [bar for bar in bars if bar[2]], rate, 1.0))
    bars = [
        (f"{name}: {UNIT_NAMES[unit]}", role, found.figure(role, measures[f"padding_{unit}"]))
        for unit in UNITS
        for role, name in roles
        if role != "ideal"
    ]
    panels.append(("Padding (%)", [bar for bar in bars if bar[2]], _share, 100.0))
    for key, label in (("gpu", "GPU use (%)"), ("cpu", "CPU use (% of the cores)")):
        bars = [(name, role, found.figure(role, measures[key])) for role, name in roles]
        if any(bar[2] for bar in bars):
            panels.append((label, [bar for bar in bars if bar[2]], _share, 100.0))
            break
    panels = [panel for panel in panels if panel[1]]
    left = 0.3 + max((figures.text_width(bar[0]) for _, bars, *_ in panels for bar in bars), default=0)
    rows = [panels[place : place + 2] for place in range(0, len(panels), 2)]
    heights = [_PITCH * max(len(bars) for _, bars, *_ in row) for row in rows]
    with figures.style():
        sheet = Sheet.new(WIDTH, 0.75 + sum(height + 0.8 for height in heights))
        sheet.heading(title, subtitle)
        top = 0.75
        for row, height in zip(rows, heights, strict=True):
            for column, (label, bars, shown, scale) in enumerate(row):
                corner = column * WIDTH / 2 + left
                sheet.text(corner, top + 0.12, label, fontweight="bold", fontsize=9.5)
                own = _PITCH * len(bars)
                axes = sheet.axes(corner, top + 0.2, WIDTH / 2 - left - 0.85, own)
                _bars(axes, bars, shown, scale)
            top += height + 0.8
        return figures.svg(sheet.figure, title, subtitle)


def _share(value: float) -> str:
    return human_share(value, 1)


def _bars(
    axes: Any, bars: Sequence[tuple[str, str, Statistic]], shown: Callable[[float], str], scale: float
) -> None:
    lengths = [figure.value * scale for _, _, figure in bars]
    colours = [ROLE_COLOURS[role] for _, role, _ in bars]
    axes.barh(range(len(bars)), lengths, height=0.66, color=colours)
    longest = max([*lengths, *(figure.high * scale for *_, figure in bars)]) or 1.0
    for place, (_, _, figure) in enumerate(bars):
        if figure.high > figure.low:
            axes.plot(
                [figure.low * scale, figure.high * scale], [place, place], color=figures.INK, linewidth=1.1
            )
        end = max(figure.value, figure.high) * scale
        axes.annotate(
            shown(figure.value),
            (end, place),
            (5, 0),
            textcoords="offset points",
            va="center_baseline",
            fontsize=9,
        )
    axes.set_yticks(range(len(bars)), [figures.label(name) for name, *_ in bars], va="center_baseline")
    axes.set_ylim(len(bars) - 0.4, -0.6)
    axes.set_xlim(0, longest)
    axes.grid(axis="x")
    axes.spines["bottom"].set_visible(False)
    figures.count_axis(axes.xaxis, 4, whole=False)


def phases(found: Throughput) -> str:
    """Time for an hour of audio, stacked by phase: shorter is faster."""
    title = "Time for an hour of audio"
    audio = next(measure for measure in MEASURES if measure.key == "audio_seconds")
    bars = [(role, name, found.figure(role, audio)) for role, name in found.role_names]
    bars = [(role, name, 3600 / figure.value) for role, name, figure in bars if figure and figure.value > 0]
    clock = "of the GPU" if found.on_gpu else "wall clock"
    subtitle = (
        f"Seconds of training ({clock}) by phase; shorter is faster. At the end: the share spent on data"
    )
    shares = {role: found.shares(role) for role, *_ in bars}
    used = [name for name in PHASES if any(shares[role][name] >= 0.0005 for role in shares)]
    legend = [(PHASE_NAMES[name], PHASE_COLOURS[name]) for name in used]
    with figures.style():
        if not bars:
            sheet = Sheet.new(WIDTH, 1.1)
            sheet.heading(title, subtitle)
            sheet.text(0.15, 0.88, "The runs say nothing of seconds of audio.")
            return figures.svg(sheet.figure, title, subtitle)
        waits = [shares[role]["decode"] + shares[role]["data_wait"] for role, *_ in bars]
        totals = [
            f"{rate(total)} s, {_share(wait)} data" for (*_, total), wait in zip(bars, waits, strict=True)
        ]
        top = 0.75 + figures.legend_height(legend, WIDTH - 0.3)
        left = 0.3 + max(figures.text_width(name) for _, name, _ in bars)
        right = 0.3 + max(figures.text_width(total) for total in totals)
        height = 0.36 * len(bars)
        sheet = Sheet.new(WIDTH, top + height + 0.65)
        sheet.heading(title, subtitle)
        sheet.legend(0.15, 0.68, legend)
        axes = sheet.axes(left, top + 0.08, WIDTH - left - right, height)
        series = [
            (PHASE_COLOURS[name], [total * shares[role][name] for role, _, total in bars]) for name in used
        ]
        figures.stacked_bars(axes, series, [name for _, name, _ in bars], totals)
        figures.count_axis(axes.xaxis, whole=False)
        axes.set_xlabel("Seconds for an hour of audio", loc="left")
        return figures.svg(sheet.figure, title, subtitle)


def buckets(found: Throughput) -> str:
    """Step time, batch and memory of every bucket, and its share of the audio against its share of the
    hours."""
    title, subtitle = (
        "Steps by bucket",
        "Median of our steps in each bucket; hairlines from the smallest to the largest",
    )
    held = [bucket for bucket in found.buckets if bucket.rows]
    shown = held[:MOST_BUCKETS]
    if len(held) > len(shown):
        subtitle += f"; the first {MOST_BUCKETS} of {len(held)}"
    with figures.style():
        if not any(bucket.seen_seconds for bucket in shown):
            sheet = Sheet.new(WIDTH, 1.1)
            sheet.heading(title)
            sheet.text(0.15, 0.65, "No steps were recorded by bucket.")
            return figures.svg(sheet.figure, title)
        height = _PITCH * len(shown)
        left = 0.3 + max(figures.text_width(figures.shorten(bucket.name, 1.6)) for bucket in shown)
        sheet = Sheet.new(WIDTH, 0.75 + 0.25 + height + 0.6)
        sheet.heading(title, subtitle)
        short = (
            max(bucket.seconds.high for bucket in shown if bucket.seconds) < 2 if _any_steps(shown) else False
        )
        scale, unit = (1000, "ms") if short else (1, "s")
        memory = max((bucket.peak_memory or 0 for bucket in shown), default=0)
        panels = (
            (f"Step ({unit})", lambda b: _range(b.seconds, scale), lambda v: rate(v)),
            ("Batch (samples)", lambda b: _range(b.batch, 1), lambda v: human_count(v)),
            ("Peak memory (GB)", lambda b: (b.peak_memory / 1e9,) * 3 if b.peak_memory else None, rate),
        )
        gap, last = 0.62, 0.62
        width = (WIDTH - left - last - 3 * gap) / 4
        for place, (label, of, text) in enumerate(panels):
            axes = sheet.axes(left + place * (width + gap), 1.0, width, height)
            sheet.text(left + place * (width + gap), 0.9, label, fontweight="bold")
            _bucket_bars(axes, shown, of, text, place == 0)
        corner = left + 3 * (width + gap)
        sheet.text(corner, 0.9, "Share of audio (%)", fontweight="bold")
        _share_bars(sheet.axes(corner, 1.0, width, height), shown, found.buckets)
        sheet.text(corner, 1.0 + height + 0.42, "line: share of the hours", color=figures.MUTED, fontsize=8.5)
        told = f"{subtitle}. Largest memory {human_bytes(memory)}" if memory else subtitle
        return figures.svg(sheet.figure, title, told)


def _any_steps(shown: Sequence[Bucket]) -> bool:
    return any(bucket.seconds for bucket in shown)


def _range(figure: Statistic | None, scale: float) -> tuple[float, float, float] | None:
    return (figure.value * scale, figure.low * scale, figure.high * scale) if figure else None


def _bucket_bars(
    axes: Any, shown: Sequence[Bucket], of: Callable, text: Callable[[float], str], named: bool
) -> None:
    found = [of(bucket) for bucket in shown]
    lengths = [values[0] if values else 0.0 for values in found]
    axes.barh(range(len(shown)), lengths, height=0.66, color=PALETTE[0])
    for place, values in enumerate(found):
        end = values[2] if values else 0.0
        if values and values[2] > values[1]:
            axes.plot(values[1:], [place, place], color=figures.INK, linewidth=1.1)
        note = text(values[0]) if values else "–"
        axes.annotate(
            note, (end, place), (4, 0), textcoords="offset points", va="center_baseline", fontsize=8.5
        )
    _finish(axes, shown, max((values[2] for values in found if values), default=1.0), named)


def _share_bars(axes: Any, shown: Sequence[Bucket], every: Sequence[Bucket]) -> None:
    seen, hours = math.fsum(b.seen_seconds for b in every), math.fsum(b.hours for b in every)
    got = [100 * bucket.seen_seconds / seen if seen else 0.0 for bucket in shown]
    due = [100 * bucket.hours / hours if hours else 0.0 for bucket in shown]
    axes.barh(range(len(shown)), got, height=0.66, color=PALETTE[2])
    for place, (share, expected) in enumerate(zip(got, due, strict=True)):
        axes.plot([expected, expected], [place - 0.42, place + 0.42], color=figures.INK, linewidth=1.6)
        end = max(share, expected)
        axes.annotate(
            human_share(share, 100),
            (end, place),
            (5, 0),
            textcoords="offset points",
            va="center_baseline",
            fontsize=8.5,
        )
    _finish(axes, shown, max([*got, *due]), False)


def _finish(axes: Any, shown: Sequence[Bucket], longest: float, named: bool) -> None:
    names = [figures.shorten(bucket.name, 1.6) if named else "" for bucket in shown]
    axes.set_yticks(range(len(shown)), names, va="center_baseline")
    axes.set_ylim(len(shown) - 0.4, -0.6)
    axes.set_xlim(0, longest or 1.0)
    axes.grid(axis="x")
    axes.spines["bottom"].set_visible(False)
    figures.count_axis(axes.xaxis, 3, whole=False)
