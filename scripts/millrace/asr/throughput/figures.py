"""The figures of the throughput report, as SVG: baseline against Millrace, time by phase."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from millrace.asr.throughput.comparison import UNIT_NAMES, Throughput
from millrace.asr.throughput.criteria import rate
from millrace.common.report import figures
from millrace.common.report.figures import PALETTE, REST, Panel, human_share
from millrace.common.throughput.run import PHASES, UNITS

ROLE_COLOURS = {"baseline": REST, "bench": PALETTE[0]}
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
    title = "Training throughput"
    subtitle = "no run of the baseline to compare with"
    if throughput.baseline:
        title += ": baseline against Millrace"
    ratio = throughput.ratio("samples")
    if ratio:
        ours = rate(throughput.known_figure("bench", "samples").value)
        theirs = rate(throughput.known_figure("baseline", "samples").value)
        subtitle = f"{ratio:.2f} times the samples/s ({ours} against {theirs})"
    device = throughput.device if throughput.on_gpu else "the CPU"

    use = ("CPU use (% of the cores)", "cpu")
    if any(throughput.figure(role, "gpu") for role in ROLE_COLOURS):
        use = ("GPU use (%)", "gpu")
    panels = [
        _panel(throughput, "Samples per second", ["samples"], rate),
        _panel(throughput, "Seconds of audio per second", ["audio_seconds"], rate),
        _panel(throughput, "Padding (%)", [f"padding_{unit}" for unit in UNITS], human_share),
        _panel(throughput, use[0], [use[1]], human_share),
    ]
    return figures.bar_chart(
        title, f"{subtitle}, on {device}; hairlines are ranges", panels, columns=2
    )


def _panel(
    throughput: Throughput, label: str, keys: Sequence[str], shown: Callable[[float], str]
) -> Panel:
    """A bar for each measure of `keys` and each role that has it."""
    scale = 100 if shown is human_share else 1
    names, colours, bars = [], [], []
    for key in keys:
        unit = key.removeprefix("padding_")
        for role, name in throughput.role_names:
            figure = throughput.figure(role, key)
            if figure is None:
                continue
            names.append(f"{name}: {UNIT_NAMES[unit]}" if unit != key else name)
            colours.append(ROLE_COLOURS[role])
            bars.append(figure)
    return Panel(
        label,
        names,
        series=[(colours, [bar.value * scale for bar in bars])],
        notes=[shown(bar.value) for bar in bars],
        ranges=[(bar.low * scale, bar.high * scale) for bar in bars],
    )


def phases(throughput: Throughput) -> str:
    """Time for an hour of audio, stacked by phase: shorter is faster."""
    clock = "of the GPU" if throughput.on_gpu else "wall clock"
    subtitle = (
        f"Training time ({clock}) by phase; shorter is faster. At the end: the share spent on data"
    )
    names, bars, notes = [], [], []
    for role, name in throughput.role_names:
        audio = throughput.figure(role, "audio_seconds")
        if audio is None or audio.value <= 0:
            continue
        shares = throughput.shares(role)
        seconds = 3600 / audio.value
        names.append(name)
        bars.append((seconds, shares))
        on_data = human_share(shares["decode"] + shares["data_wait"])
        notes.append(f"{rate(seconds)} s, {on_data} data")

    used = [phase for phase in PHASES if any(shares[phase] >= 0.0005 for _, shares in bars)]
    legend = [PHASE_STYLES[phase] for phase in used]
    series = []
    for phase in used:
        lengths = [seconds * shares[phase] for seconds, shares in bars]
        series.append((PHASE_STYLES[phase][1], lengths))
    return figures.bar_chart(
        "Time for an hour of audio",
        subtitle,
        [Panel("Seconds for an hour of audio", names, series, notes)],
        legend,
        nothing="The runs do not say how many seconds of audio they read.",
    )
