"""The runs of the baseline, of Millrace, and of a loader that costs nothing, measured against each
other."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from millrace.common import jsonl
from millrace.common.errors import MillraceError
from millrace.common.throughput.run import PHASES, UNITS, Run
from millrace.common.training.settings import regime

# What runs must share to be compared.
_SHARED: tuple[str, ...] = ("device", "cpu", "cores", "model", "model_options", "precision", "tf32")
_SHARED += ("gradient_checkpointing", "max_steps", "grad_acc", "lr", "ranks")
ROLES = ("baseline", "bench", "ideal", "check", "profile")
UNIT_NAMES = {"audio_seconds": "seconds", "tokens": "tokens", "flops": "FLOPs"}


@dataclass(frozen=True)
class Statistic:
    """The median of the runs, and their range; of one run, range and `window_median` of the log's
    lines."""

    value: float
    low: float
    high: float
    runs: tuple[float, ...]
    window_median: float | None = None

    @classmethod
    def of(cls, runs: Sequence[float | None], windows: Sequence[float] = ()) -> Statistic | None:
        """From a figure per run, and those of the lines if there is one run; None if a run has
        none."""
        known = [figure for figure in runs if figure is not None]
        if not known or len(known) < len(runs):
            return None
        spread, middle = windows or known, statistics.median(windows) if windows else None
        return cls(statistics.median(known), min(spread), max(spread), tuple(known), middle)


@dataclass(frozen=True)
class Measure:
    """A line of the comparison. `kind` says how to show it: rate, share or bytes.

    `of` is given a run, and a line of its log in `lines` ("steady" or "windows") for that line's
    figure.
    """

    key: str
    name: str
    kind: str
    of: Callable[..., float | None]
    lines: str = ""
    higher_is_better: bool = True


def _rate(count: str, name: str) -> Measure:
    return Measure(count, name, "rate", lambda run, *line: run.rate(count, *line), "steady")


def _padding(unit: str) -> Measure:
    key, name = f"padding_{unit}", f"Padding in {UNIT_NAMES[unit]}"
    return Measure(
        key, name, "share", lambda run, *line: run.padding(unit, *line), "windows", False
    )


def _waiting(run: Run, *line: dict[str, Any]) -> float:
    if line:
        return line[0]["time_share"].get("data_wait", 0.0)
    return run.shares["decode"] + run.shares["data_wait"]


_MEASURES = (
    _rate("samples", "Samples/s"),
    _rate("audio_seconds", "Audio-s/s"),
    Measure("gpu", "GPU use", "share", lambda run: run.use("gpu")),
    Measure("cpu", "CPU use", "share", lambda run: run.use("cpu")),
    *map(_padding, UNITS),
    Measure(
        "peak_memory", "Peak memory", "bytes", lambda run: run.peak_memory, higher_is_better=False
    ),
    Measure("waiting", "Waiting for data", "share", _waiting, "steady", higher_is_better=False),
)
MEASURES = {measure.key: measure for measure in _MEASURES}
# Keys of throughput.reference in the config: the measure, and what its figure is multiplied by.
REFERENCE = {
    "samples_per_second": ("samples", 1.0),
    "audio_seconds_per_second": ("audio_seconds", 1.0),
    "gpu_use": ("gpu", 1.0),
    "cpu_use": ("cpu", 1.0),
    "padding": ("padding_audio_seconds", 1.0),
    "peak_memory_gb": ("peak_memory", 1e9),
    "waiting": ("waiting", 1.0),
}


class Bucket:
    """A bucket as our runs met it. `steps` are those in which the whole batch was of this
    bucket."""

    def __init__(
        self, name: str, hours: float, rows: int, mean: float, longest: float, runs: Sequence[Run]
    ) -> None:
        self.name, self.hours, self.rows = name, hours, rows
        self.mean_duration, self.max_duration = mean, longest  # seconds; 0: unknown
        # Seconds of audio, also in steps of several buckets.
        by_bucket = [step["buckets"] for run in runs for step in run.steps]
        self.seen_seconds = math.fsum(seen[name][1] for seen in by_bucket if name in seen)

        steps = [step for run in runs for step in run.steady_steps if step.get("bucket") == name]
        self.steps = len(steps)
        self.seconds = Statistic.of([step["seconds"] for step in steps])
        self.batch = Statistic.of([float(step["samples"]) for step in steps])
        audio = math.fsum(step["audio_seconds"] for step in steps)
        padded = math.fsum(step["padded_audio_seconds"] for step in steps)
        spent = math.fsum(step["seconds"] for step in steps)
        self.padding = 1 - audio / padded if padded else None
        self.rate = audio / spent if spent else None  # seconds of audio a second
        self.peak_memory = (
            max((step.get("peak_memory_bytes") or 0 for step in steps), default=0) or None
        )


class Throughput:
    """All runs of a report, by role; `buckets` are those of bucket_config.json, in its order."""

    def __init__(
        self,
        folders: Mapping[str, Sequence[str]],
        bucket_config: str | Path | None,
        reference: Mapping[str, Any] | None = None,
    ) -> None:
        """Read the runs of each role, named by folder or metrics.json; `bench` must have one.

        `reference`: `name` and figures of a system measured elsewhere, by the keys of REFERENCE.
        """
        if not folders.get("bench"):
            raise MillraceError(
                "there is no run of our own pipeline to report", "", "Name one with --bench"
            )
        runs: dict[str, list[Run]] = {}
        for role in ROLES:
            names = folders.get(role, ())
            runs[role] = [
                Run(Path(name).parent if name.endswith(".json") else name) for name in names
            ]
        self.baseline, self.bench, self.ideal, self.check, self.profile = runs.values()
        # A name alone says nothing.
        self.reference = _checked(reference or {}) if set(reference or ()) - {"name"} else {}
        self.buckets = _buckets(bucket_config, self.bench) if bucket_config else []
        # The roles that are compared, with the name that people read.
        titles = {"baseline": "Baseline", "bench": "Millrace", "ideal": "Ideal loader"}
        self.role_names = [(role, title) for role, title in titles.items() if runs[role]]
        self.device: str = self.bench[0].machine.get("device") or "unknown device"
        self.on_gpu = self.device not in ("cpu", "unknown device")

    def figure(self, role: str, key: str) -> Statistic | None:
        runs, measure = getattr(self, role), MEASURES[key]
        lines = getattr(runs[0], measure.lines) if len(runs) == 1 and measure.lines else []
        windows = [value for line in lines if (value := measure.of(runs[0], line)) is not None]
        return Statistic.of([measure.of(run) for run in runs], windows)

    def known_figure(self, role: str, key: str) -> Statistic:
        """The figure of a role for which there is a `ratio`, so that it has one."""
        figure = self.figure(role, key)
        assert figure is not None
        return figure

    def referred(self, key: str) -> float | None:
        """The figure of the reference for a measure."""
        given = ((name, scale) for name, (measure, scale) in REFERENCE.items() if measure == key)
        return next(
            (self.reference[name] * scale for name, scale in given if name in self.reference), None
        )

    def ratio(self, key: str, over: str = "baseline", of: str = "bench") -> float | None:
        """How many times the figure of one role is that of another."""
        new, old = self.figure(of, key), self.figure(over, key)
        return new.value / old.value if new and old and old.value > 0 else None

    def shares(self, role: str) -> dict[str, float]:
        """Time shares by phase, the mean over runs."""
        runs: list[Run] = getattr(self, role)
        return {name: math.fsum(run.shares[name] for run in runs) / len(runs) for name in PHASES}

    def headroom(self) -> float | None:
        """How many times faster training would be with a loader that costs nothing."""
        return self.ratio("audio_seconds", over="bench", of="ideal")

    def regime(self) -> str:
        """In words, what precision is compared: what is kept of a parameter, and what it is
        computed in."""
        facts, device = self.bench[0].facts, self.bench[0].machine.get("device", "cpu")
        return regime(facts.get("precision", ""), facts.get("tf32"), on_gpu=device != "cpu")

    def differences(self) -> list[str]:
        """Why baseline and ours cannot be compared: another machine, model, precision, number of
        steps."""
        lines, ours = [], self.bench[0]
        for other in [*self.baseline, *self.bench[1:], *self.ideal] if self.baseline else []:
            mine, theirs = (
                {**run.facts, **run.machine, "ranks": run.world_size} for run in (ours, other)
            )
            for name in _SHARED:
                one, two = mine.get(name), theirs.get(name)
                if one is not None and two is not None and one != two:
                    lines.append(f"{name} is {two} in {other.name}, {one} in {ours.name}")
        return lines


def _checked(reference: Mapping[str, Any]) -> dict[str, Any]:
    for key, value in reference.items():
        highest = 1 if key in REFERENCE and MEASURES[REFERENCE[key][0]].kind == "share" else 1e15
        is_figure = key in REFERENCE and isinstance(value, int | float) and 0 <= value <= highest
        if key != "name" and not is_figure:
            remedy = (
                f"Give name, and of {', '.join(REFERENCE)} what is known: numbers, shares from 0"
                " to 1"
            )
            raise MillraceError(f"{key} is {value!r}", "throughput.reference", remedy)
    return {"name": "Reference", **reference}


def _buckets(config: str | Path, runs: Sequence[Run]) -> list[Bucket]:
    try:
        entries = jsonl.read(config)["buckets"]
        facts = [
            (entry["bucket_id"], float(entry["hours"]), int(entry["samples"])) for entry in entries
        ]
        more = [
            [float(entry.get(f"{of}_duration", 0)) for of in ("mean", "max")] for entry in entries
        ]
    except (OSError, ValueError, KeyError, TypeError) as error:
        problem = f"not a bucket configuration ({error!r})"
        raise MillraceError(problem, str(config), "Run snakemake asr_data") from None
    return [
        Bucket(name, hours, rows, mean, longest, runs)
        for (name, hours, rows), (mean, longest) in zip(facts, more, strict=True)
    ]
