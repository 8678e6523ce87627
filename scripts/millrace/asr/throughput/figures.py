"""The figure of the throughput report, as SVG: time by phase."""

from __future__ import annotations

from millrace.asr.throughput.comparison import Throughput
from millrace.asr.throughput.criteria import rate
from millrace.common.report import figures
from millrace.common.report.figures import PALETTE, REST, Panel, human_share
from millrace.common.throughput.run import PHASES

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


def phases(throughput: Throughput) -> str:
    """Time for an hour of audio, stacked by phase: shorter is faster."""
    clock = "of the GPU" if throughput.on_gpu else "wall clock"
    subtitle = (
        f"Training time ({clock}) by phase; shorter is faster. At the end: the share spent on data"
    )
    names = []
    bars = []
    notes = []
    for role, name in throughput.role_names:
        audio = throughput.figure(role, "audio_seconds")
        if audio is None or audio <= 0:
            continue
        shares = throughput.shares(role)
        seconds = 3600 / audio
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
