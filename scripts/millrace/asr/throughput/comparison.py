"""The runs of the baseline and of Millrace, measured against each other: by which figures, and what
they must share to be compared."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from millrace.common import jsonl
from millrace.common.errors import MillraceError
from millrace.common.report.figures import human_bytes, human_share
from millrace.common.throughput.run import Run

# What the runs must share to be compared.
_SHARED = (
    "device",
    "cpu",
    "cores",
    "model",
    "model_options",
    "precision",
    "tf32",
    "gradient_checkpointing",
    "max_steps",
    "grad_acc",
    "lr",
    "ranks",
)


def rate(value: float) -> str:
    """Three figures or more: `1,234`, `123`, `12.3`, `1.23`."""
    if value >= 99.95:
        return f"{value:,.0f}"
    if value >= 9.995:
        return f"{value:.1f}"
    return f"{value:.2f}"


class Measure(NamedTuple):
    """A line of the comparison."""

    key: str
    name: str
    shown: Callable[[float], str]
    of: Callable[[Run], float | None]


MEASURES = (
    Measure("samples", "Samples/s", rate, lambda run: run.rate("samples")),
    Measure("audio_seconds", "Audio-s/s", rate, lambda run: run.rate("audio_seconds")),
    Measure("gpu", "GPU use", human_share, lambda run: run.facts.get("gpu_use")),
    Measure("padding", "Padding in seconds", human_share, lambda run: run.padding("audio_seconds")),
    Measure("padding_tokens", "Padding in tokens", human_share, lambda run: run.padding("tokens")),
    Measure("padding_flops", "Padding in FLOPs", human_share, lambda run: run.padding("flops")),
    Measure("peak_memory", "Peak memory", human_bytes, lambda run: run.peak_memory),
    Measure("waiting", "Waiting for data", human_share, lambda run: run.shares["data_wait"]),
)


@dataclass(frozen=True)
class Bucket:
    """A bucket as our run met it. `steps` are those in which the whole batch was of it, and the
    seconds of a step their median."""

    name: str
    hours: float
    rows: int
    seen_hours: float  # of audio, also in steps of several buckets
    steps: int
    step_seconds: float | None
    audio_seconds_per_second: float | None
    padding: float | None
    peak_memory_bytes: int | None

    @classmethod
    def met(cls, name: str, hours: float, rows: int, run: Run) -> Bucket:
        seen = [step["buckets"].get(name, (0, 0.0)) for step in run.steps]
        steps = [step for step in run.steady_steps if step.get("bucket") == name]
        audio = math.fsum(step["audio_seconds"] for step in steps)
        padded = math.fsum(step["padded_audio_seconds"] for step in steps)
        seconds = [step["seconds"] for step in steps]
        return cls(
            name=name,
            hours=hours,
            rows=rows,
            seen_hours=math.fsum(seconds for _, seconds in seen) / 3600,
            steps=len(steps),
            step_seconds=statistics.median(seconds) if steps else None,
            audio_seconds_per_second=audio / math.fsum(seconds) if steps else None,
            padding=1 - audio / padded if padded else None,
            peak_memory_bytes=max((step["peak_memory_bytes"] for step in steps), default=None),
        )


@dataclass(frozen=True)
class Comparison:
    """The runs of a report; `buckets` are those of bucket_config.json, in its order."""

    baseline: Run
    bench: Run
    check: Run
    profile: Run
    buckets: Sequence[Bucket]

    @classmethod
    def read(cls, bucket_config: str, **metrics: str) -> Comparison:
        """Read the run of each role, named by its metrics.json."""
        runs = {role: Run(Path(path).parent) for role, path in metrics.items()}
        return cls(**runs, buckets=_buckets(bucket_config, runs["bench"]))

    @property
    def compared(self) -> dict[str, Run]:
        """The runs that are compared, by the names that people read."""
        return {"Baseline": self.baseline, "Millrace": self.bench}

    def ratio(self, measure: Measure) -> float | None:
        """How many times the figure of the baseline is ours."""
        new = measure.of(self.bench)
        old = measure.of(self.baseline)
        if new is None or not old:
            return None
        return new / old

    def difference(self) -> str:
        """Why baseline and ours cannot be compared: another machine, model, precision, number of
        steps; "" if they can."""
        ours = _conditions(self.bench)
        theirs = _conditions(self.baseline)
        for name in _SHARED:
            new = ours.get(name)
            old = theirs.get(name)
            if new != old:
                return f"{name} is {old} in {self.baseline.name}, {new} in {self.bench.name}"
        return ""


def _conditions(run: Run) -> dict[str, Any]:
    return {**run.facts, **run.machine, "ranks": run.world_size}


def _buckets(config: str, run: Run) -> list[Bucket]:
    try:
        entries = [
            (entry["bucket_id"], float(entry["hours"]), int(entry["samples"]))
            for entry in jsonl.read(config)["buckets"]
        ]
    except (OSError, ValueError, KeyError, TypeError) as error:
        problem = f"not a bucket configuration ({error!r})"
        raise MillraceError(problem, config, "Run snakemake asr_data") from None
    return [Bucket.met(*entry, run) for entry in entries]
