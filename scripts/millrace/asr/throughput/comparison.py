"""The runs of the baseline and of Millrace, measured against each other."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from millrace.common import jsonl
from millrace.common.errors import MillraceError
from millrace.common.throughput.run import PHASES, Run
from millrace.common.training.settings import regime

# What runs must share to be compared.
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
ROLES = ("baseline", "bench", "check", "profile")
# The roles that are compared, with the name that people read.
_TITLES = {"baseline": "Baseline", "bench": "Millrace"}
UNIT_NAMES = {
    "audio_seconds": "seconds",
    "tokens": "tokens",
    "flops": "FLOPs",
}


class Measure(NamedTuple):
    """A line of the comparison. `kind` says how to show it: rate, share or bytes.

    `reference` is its key in throughput.reference, whose figure is multiplied by `scale`.
    """

    key: str
    name: str
    kind: str
    of: Callable[[Run], float | None]
    reference: str = ""
    scale: float = 1.0


def _padding(unit: str, reference: str = "") -> Measure:
    name = f"Padding in {UNIT_NAMES[unit]}"
    return Measure(f"padding_{unit}", name, "share", lambda run: run.padding(unit), reference)


def _waiting(run: Run) -> float:
    return run.shares["decode"] + run.shares["data_wait"]


_MEASURES = (
    Measure("samples", "Samples/s", "rate", lambda run: run.rate("samples"), "samples_per_second"),
    Measure("audio_seconds", "Audio-s/s", "rate", lambda run: run.rate("audio_seconds")),
    Measure("gpu", "GPU use", "share", lambda run: run.use("gpu"), "gpu_use"),
    Measure("cpu", "CPU use", "share", lambda run: run.use("cpu")),
    _padding("audio_seconds", "padding"),
    _padding("tokens"),
    _padding("flops"),
    Measure(
        "peak_memory", "Peak memory", "bytes", lambda run: run.peak_memory, "peak_memory_gb", 1e9
    ),
    Measure("waiting", "Waiting for data", "share", _waiting),
)
MEASURES = {measure.key: measure for measure in _MEASURES}
_REFERENCE = {measure.reference: measure for measure in _MEASURES if measure.reference}


@dataclass(frozen=True)
class Bucket:
    """A bucket as our runs met it. `steps` are those in which the whole batch was of it; the
    seconds of a step and the samples of a batch are their medians."""

    name: str
    hours: float
    rows: int
    seen_hours: float  # of audio, also in steps of several buckets
    steps: int
    step_seconds: float | None
    batch_size: float | None
    padding: float | None
    audio_seconds_per_second: float | None
    peak_memory_bytes: int | None

    @classmethod
    def met(
        cls,
        name: str,
        hours: float,
        rows: int,
        runs: Sequence[Run],
    ) -> Bucket:
        seen = [step["buckets"].get(name, (0, 0.0)) for run in runs for step in run.steps]
        steps = [step for run in runs for step in run.steady_steps if step.get("bucket") == name]
        audio = math.fsum(step["audio_seconds"] for step in steps)
        padded = math.fsum(step["padded_audio_seconds"] for step in steps)
        spent = math.fsum(step["seconds"] for step in steps)
        peaks = [step.get("peak_memory_bytes") or 0 for step in steps]
        return cls(
            name=name,
            hours=hours,
            rows=rows,
            seen_hours=math.fsum(seconds for _, seconds in seen) / 3600,
            steps=len(steps),
            step_seconds=_median([step["seconds"] for step in steps]),
            batch_size=_median([step["samples"] for step in steps]),
            padding=1 - audio / padded if padded else None,
            audio_seconds_per_second=audio / spent if spent else None,
            peak_memory_bytes=max(peaks, default=0) or None,
        )


def _median(figures: Sequence[float]) -> float | None:
    if figures:
        return float(statistics.median(figures))
    return None


class Throughput:
    """All runs of a report, by role; `buckets` are those of bucket_config.json, in its order."""

    def __init__(
        self,
        folders: Mapping[str, Sequence[str]],
        bucket_config: str | Path | None,
        reference: Mapping[str, Any] | None = None,
    ) -> None:
        """Read the runs of each role, named by folder or metrics.json; `bench` must have one.

        `reference`: `name` and figures of a system measured elsewhere, as the config has them.
        """
        if not folders.get("bench"):
            problem = "there is no run of our own pipeline to report"
            raise MillraceError(problem, "", "Name one with --bench")
        self.runs = {role: [_run(name) for name in folders.get(role, ())] for role in ROLES}
        self.baseline, self.bench, self.check, self.profile = self.runs.values()
        self.reference = _checked(reference or {})
        self.buckets = _buckets(bucket_config, self.bench) if bucket_config else []
        self.role_names = [(role, title) for role, title in _TITLES.items() if self.runs[role]]
        self.device: str = self.bench[0].machine.get("device") or "unknown device"
        self.on_gpu = self.device not in ("cpu", "unknown device")

    def figures(self, role: str, key: str) -> list[float]:
        """A measure of each run of a role; nothing if one of them does not know it."""
        found = [MEASURES[key].of(run) for run in self.runs[role]]
        known = [figure for figure in found if figure is not None]
        if len(known) == len(found):
            return known
        return []

    def figure(self, role: str, key: str) -> float | None:
        """The median over the runs of a role."""
        return _median(self.figures(role, key))

    def known_rate(self, role: str) -> float:
        """Samples per second of a role for which there is a `ratio`, so that it has them."""
        figure = self.figure(role, "samples")
        assert figure is not None
        return figure

    def referred(self, key: str) -> float | None:
        """The figure of the reference for a measure."""
        measure = MEASURES[key]
        if measure.reference not in self.reference:
            return None
        return self.reference[measure.reference] * measure.scale

    def ratio(self, key: str) -> float | None:
        """How many times the figure of the baseline is ours."""
        new = self.figure("bench", key)
        old = self.figure("baseline", key)
        if new is None or old is None or old <= 0:
            return None
        return new / old

    def shares(self, role: str) -> dict[str, float]:
        """Time shares by phase, the mean over runs."""
        runs = self.runs[role]
        means = {}
        for name in PHASES:
            total = math.fsum(run.shares[name] for run in runs)
            means[name] = total / len(runs)
        return means

    def regime(self) -> str:
        """In words, what precision is compared: what is kept of a parameter, and what it is
        computed in."""
        facts = self.bench[0].facts
        device = self.bench[0].machine.get("device", "cpu")
        return regime(facts.get("precision", ""), facts.get("tf32"), on_gpu=device != "cpu")

    def differences(self) -> list[str]:
        """Why baseline and ours cannot be compared: another machine, model, precision, number of
        steps."""
        if not self.baseline:
            return []
        first = self.bench[0]
        ours = _conditions(first)
        lines = []
        for run in [*self.baseline, *self.bench[1:]]:
            theirs = _conditions(run)
            for name in _SHARED:
                new = ours.get(name)
                old = theirs.get(name)
                if new is not None and old is not None and new != old:
                    lines.append(f"{name} is {old} in {run.name}, {new} in {first.name}")
        return lines


def _run(name: str) -> Run:
    path = Path(name)
    return Run(path.parent if path.suffix == ".json" else path)


def _conditions(run: Run) -> dict[str, Any]:
    return {**run.facts, **run.machine, "ranks": run.world_size}


def _checked(reference: Mapping[str, Any]) -> dict[str, Any]:
    """The reference if it has a figure; a name alone, the config's default, says nothing."""
    for key, value in reference.items():
        if key == "name":
            continue
        highest = 1 if key in _REFERENCE and _REFERENCE[key].kind == "share" else math.inf
        is_number = isinstance(value, int | float)
        if key not in _REFERENCE or not is_number or not 0 <= value <= highest:
            known = ", ".join(_REFERENCE)
            remedy = f"Give name, and of {known} what is known: numbers, shares from 0 to 1"
            raise MillraceError(f"{key} is {value!r}", "throughput.reference", remedy)
    if not reference.keys() - {"name"}:
        return {}
    return {"name": "Reference", **reference}


def _buckets(config: str | Path, runs: Sequence[Run]) -> list[Bucket]:
    try:
        entries = [
            (entry["bucket_id"], float(entry["hours"]), int(entry["samples"]))
            for entry in jsonl.read(config)["buckets"]
        ]
    except (OSError, ValueError, KeyError, TypeError) as error:
        problem = f"not a bucket configuration ({error!r})"
        raise MillraceError(problem, str(config), "Run snakemake asr_data") from None
    return [Bucket.met(*entry, runs) for entry in entries]
