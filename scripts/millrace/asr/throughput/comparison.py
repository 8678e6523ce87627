"""Old against new: what the runs of the naive pipeline, of ours, and of a loader that costs nothing have to
say."""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from millrace.asr.throughput.run import PHASES, UNITS, Run
from millrace.common import jsonl
from millrace.common.errors import MillraceError

# Settings that runs must share to be compared.
_SHARED = ("model", "model_options", "precision", "gradient_checkpointing", "max_steps", "grad_acc", "lr")
UNIT_NAMES = {"audio_seconds": "seconds", "tokens": "tokens", "flops": "FLOPs"}


@dataclass(frozen=True)
class Figure:
    """A figure of one or several runs: `value` is the median over runs of each whole run; low to high the
    range.

    With one run, the range (and `window_median`) is that of the lines of its log, of whole runs otherwise.
    """

    value: float
    low: float
    high: float
    runs: tuple[float, ...]
    window_median: float | None = None

    @classmethod
    def of(cls, runs: Sequence[float | None], windows: Sequence[float] = ()) -> Figure | None:
        """From a figure per run, and those of the lines where there is one run; None where a run has none."""
        found = [value for value in runs if value is not None]
        if not found or len(found) < len(runs):
            return None
        spread = list(windows) if len(found) == 1 and windows else found
        middle = statistics.median(windows) if len(found) == 1 and windows else None
        return cls(statistics.median(found), min(spread), max(spread), tuple(found), middle)

    def as_dict(self) -> dict[str, Any]:
        names = ("value", "low", "high", "window_median")
        return {**{name: getattr(self, name) for name in names}, "runs": list(self.runs)}


@dataclass(frozen=True)
class Measure:
    """A line of the comparison. `kind` says how to show it: rate, share or bytes."""

    key: str
    name: str
    kind: str
    of: Callable[[Run], float | None]
    windows: Callable[[Run], list[float]] = lambda run: []
    higher_is_better: bool = True


def _padding(unit: str) -> Measure:
    return Measure(
        f"padding_{unit}",
        f"Padding in {UNIT_NAMES[unit]}",
        "share",
        lambda run: run.padding(unit),
        lambda run: run.window_padding(unit),
        False,
    )


MEASURES = (
    Measure(
        "samples",
        "Samples/s",
        "rate",
        lambda run: run.rate("samples"),
        lambda run: run.window_rates("samples"),
    ),
    Measure(
        "audio_seconds",
        "Audio-s/s",
        "rate",
        lambda run: run.rate("audio_seconds"),
        lambda run: run.window_rates("audio_seconds"),
    ),
    Measure("gpu", "GPU use", "share", lambda run: run.use("gpu")),
    Measure("cpu", "CPU use", "share", lambda run: run.use("cpu")),
    *map(_padding, UNITS),
    Measure("peak_memory", "Peak memory", "bytes", lambda run: run.peak_memory, higher_is_better=False),
    Measure(
        "waiting",
        "Waiting for data",
        "share",
        lambda run: run.shares["decode"] + run.shares["data_wait"],
        lambda run: [line["time_share"].get("data_wait", 0.0) for line in run.steady],
        False,
    ),
)


@dataclass
class Bucket:
    """A bucket as our runs met it. Steps are those in which the whole batch was of this bucket."""

    name: str
    hours: float
    rows: int
    steps: int = 0
    seconds: Figure | None = None
    batch: Figure | None = None
    padding: float | None = None
    rate: float | None = None
    peak_memory: int | None = None
    seen_seconds: float = 0.0


@dataclass
class Throughput:
    """All runs of a report, by role; `buckets` are those of bucket_config.json, in its order."""

    baseline: list[Run] = field(default_factory=list)
    bench: list[Run] = field(default_factory=list)
    ideal: list[Run] = field(default_factory=list)
    check: list[Run] = field(default_factory=list)
    profile: list[Run] = field(default_factory=list)
    buckets: list[Bucket] = field(default_factory=list)

    @classmethod
    def read(cls, folders: Mapping[str, Sequence[str]], bucket_config: str | Path | None) -> Throughput:
        """Read the runs of every role; there must be one of `bench`. Raises MillraceError."""
        found = cls(**{role: [Run.read(_folder(name)) for name in named] for role, named in folders.items()})
        if not found.bench:
            raise MillraceError(
                "there is no run of our own pipeline to report", remedy="Name one with --bench"
            )
        found.buckets = _buckets(bucket_config, found.bench) if bucket_config else []
        return found

    @property
    def role_names(self) -> list[tuple[str, str]]:
        """The roles that are compared, with the name that people read."""
        names = {"baseline": "Baseline", "bench": "Millrace", "ideal": "Ideal loader"}
        return [(role, name) for role, name in names.items() if getattr(self, role)]

    @property
    def device(self) -> str:
        return self.bench[0].machine.get("device") or "unknown device"

    @property
    def on_gpu(self) -> bool:
        return self.device not in ("cpu", "unknown device")

    def figure(self, role: str, measure: Measure) -> Figure | None:
        runs: list[Run] = getattr(self, role)
        windows = measure.windows(runs[0]) if len(runs) == 1 else []
        return Figure.of([measure.of(run) for run in runs], windows)

    def ratio(self, key: str, over: str = "baseline", of: str = "bench") -> float | None:
        """How many times the figure of one role is that of another."""
        measure = next(measure for measure in MEASURES if measure.key == key)
        new, old = self.figure(of, measure), self.figure(over, measure)
        return new.value / old.value if new and old and old.value > 0 else None

    def shares(self, role: str) -> dict[str, float]:
        """Time shares by phase, the mean over runs."""
        runs: list[Run] = getattr(self, role)
        return {name: math.fsum(run.shares[name] for run in runs) / len(runs) for name in PHASES}

    def headroom(self) -> float | None:
        """How many times faster training would be with a loader that costs nothing."""
        return self.ratio("audio_seconds", over="bench", of="ideal")

    def differences(self) -> list[str]:
        """What keeps baseline and ours from being compared: another machine, model, precision, number of
        steps."""
        if not self.baseline:
            return []
        found = []
        ours, others = self.bench[0], [*self.baseline, *self.bench[1:], *self.ideal]
        for other in others:
            pairs = [
                (name, ours.machine.get(name), other.machine.get(name)) for name in ("device", "cpu", "cores")
            ]
            pairs += [(name, ours.facts.get(name), other.facts.get(name)) for name in _SHARED]
            pairs.append(("ranks", ours.world_size, other.world_size))
            for name, one, two in pairs:
                if one is not None and two is not None and one != two:
                    found.append(f"{name} is {two} in {other.name}, {one} in {ours.name}")
        return found


def _buckets(config: str | Path, runs: Sequence[Run]) -> list[Bucket]:
    try:
        named = jsonl.read(config)["buckets"]
        buckets = [
            Bucket(entry["bucket_id"], float(entry["hours"]), int(entry["samples"])) for entry in named
        ]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise MillraceError(
            f"not a bucket configuration ({error!r})", str(config), "Run snakemake asr_data"
        ) from None
    for bucket in buckets:
        _measure(bucket, runs)
    return buckets


def _measure(bucket: Bucket, runs: Sequence[Run]) -> None:
    steps = [step for run in runs for step in run.steady_steps if step.get("bucket") == bucket.name]
    seen = [step["buckets"] for run in runs for step in run.steps]
    bucket.seen_seconds = math.fsum(found[bucket.name][1] for found in seen if bucket.name in found)
    bucket.steps = len(steps)
    if not steps:
        return
    bucket.seconds = _spread([step["seconds"] for step in steps])
    bucket.batch = _spread([float(step["samples"]) for step in steps])
    padded = math.fsum(step["padded_audio_seconds"] for step in steps)
    useful = math.fsum(step["audio_seconds"] for step in steps)
    bucket.padding = 1 - useful / padded if padded else None
    spent = math.fsum(step["seconds"] for step in steps)
    bucket.rate = useful / spent if spent else None
    bucket.peak_memory = max(
        (step["peak_memory_bytes"] for step in steps if step.get("peak_memory_bytes")), default=None
    )


def _spread(values: list[float]) -> Figure:
    return Figure(statistics.median(values), min(values), max(values), tuple(values))


def _folder(name: str) -> str:
    """A run's folder, also where its metrics.json is named."""
    return os.path.dirname(name) or "." if name.endswith(".json") else name
