"""A training run as the files in its folder tell it, and which steps of it are measured."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any, TypedDict

from millrace.common import jsonl
from millrace.common.errors import MillraceError, remade

METRICS = "metrics.jsonl"
SUMMARY = "metrics.json"
# Written by recorder and profile; named here, where torch is not needed.
STEPS = "steps.jsonl"
FACTS = "throughput.json"
PROFILE = "profile.json"
# Of a step's time, in its order; a loader that decodes in the trainer is waited for.
PHASES = ("data_wait", "copy", "forward", "backward", "sync", "optimiser", "idle")


class StepLine(TypedDict, total=False):
    """A line of steps.jsonl: an optimiser step of rank 0, with all batches accumulated for it."""

    step: int
    bucket: str | None  # None: samples of several buckets, or a filler's
    batches: int
    samples: int
    audio_seconds: float
    padded_audio_seconds: float
    buckets: dict[str, tuple[int, float]]  # samples and seconds of audio, by bucket
    peak_memory_bytes: int
    seconds: float  # from when the first batch is asked for to the end of the step


class Run:
    """A run in its folder. Rates and shares are those of the steady part of the log; None: not
    measured."""

    def __init__(self, folder: str | Path) -> None:
        """Read it. Raises MillraceError if it has logged nothing; the other files may be
        missing."""
        self.folder = folder = Path(folder)
        self.name = folder.name
        lines = jsonl.whole_lines(folder / METRICS)
        self.windows = [line for line in lines if line["event"] == "train"]
        if not self.windows:
            problem = "no training step was logged here"
            raise MillraceError(problem, str(folder / METRICS), remade(str(folder / SUMMARY)))
        last = self.windows[-1]
        self.done_steps = int(last["step"])
        self.world_size = int(last["world_size"])
        self.facts: dict[str, Any] = _document(folder / FACTS) or {}  # as recorder writes them
        self.machine: dict[str, Any] = self.facts.get("machine") or {}
        self.failed: str | None = self.facts.get("failed")
        summary = _document(folder / SUMMARY)
        self.finished = summary is not None and not self.failed  # metrics.json is written last
        self.profile = _document(folder / PROFILE)
        self.steps: list[StepLine] = jsonl.whole_lines(folder / STEPS)

        self.steady = self.windows
        self.steady_steps = self.steps
        if len(self.windows) >= 3:
            # The first, with the start of workers and first allocations, is not steady.
            first = self.windows[0]["step"]
            self.steady = self.windows[1:]
            self.steady_steps = [line for line in self.steps if line["step"] > first] or self.steps

    def rate(self, count: str) -> float | None:
        """Units of a count (`samples`, `audio_seconds`) a second, on all ranks."""
        return _ratio((line["counts"].get(count), line["seconds"]) for line in self.steady)

    def padding(self, unit: str) -> float | None:
        """Share of a unit (0 to 1) that is padding, over the whole run: a plan has no warm-up."""
        counts = [line["counts"] for line in self.windows]
        useful = _ratio((count.get(unit), count.get(f"padded_{unit}")) for count in counts)
        return None if useful is None else 1 - useful

    @cached_property
    def shares(self) -> dict[str, float]:
        """Share of time by phase (0 to 1); they add up to 1. On a GPU it is the device's time."""
        seconds = math.fsum(line["seconds"] for line in self.steady)
        shares = {}
        for name in PHASES:
            spent = (line["seconds"] * line["time_share"].get(name, 0.0) for line in self.steady)
            shares[name] = math.fsum(spent) / seconds
        return shares

    @property
    def peak_memory(self) -> int | None:
        """Most bytes, of the fullest rank known: of the GPU's allocator, or else resident in the
        trainer."""
        lines = [*self.windows, *self.steps]
        sizes = [line.get("peak_memory_bytes") for line in lines]
        return max((int(size) for size in sizes if size), default=None)

    @property
    def lost_samples(self) -> int:
        """Samples left out as unusable, on all ranks."""
        lost = 0.0
        for line in self.windows:
            for name, count in line["counts"].items():
                if name.startswith("unusable_"):
                    lost += count
        return round(lost)

    @property
    def samples(self) -> float:
        """Samples trained on, on all ranks."""
        return math.fsum(line["counts"].get("samples", 0) for line in self.windows)

    def loss_after(self, samples: float) -> tuple[float | None, int]:
        """Mean training loss of the last quarter of the first `samples`, weighted by its units, and
        the steps that they took.

        By lines of the log: the one in which they end counts whole if most of it is inside.
        """
        lines: list[dict[str, Any]] = []
        done = 0.0
        for line in self.windows:
            count = line["counts"].get("samples", 0)
            if lines and done + count / 2 > samples:
                break
            lines.append(line)
            done += count

        losses = []
        for line in lines:
            if line.get("loss") is not None:
                weight = line.get("weight", 1.0)
                losses.append((line["loss"] * weight, weight))
        quarter = max(1, len(losses) // 4)
        return _ratio(losses[-quarter:]), int(lines[-1]["step"])


def _ratio(pairs: Iterable[tuple[Any, Any]]) -> float | None:
    """Sum over sum; None if a number is missing or the divisor is not positive."""
    parts = []
    wholes = []
    for part, whole in pairs:
        if part is None or whole is None:
            return None
        parts.append(part)
        wholes.append(whole)
    divisor = math.fsum(wholes)
    if divisor > 0:
        return math.fsum(parts) / divisor
    return None


def _document(path: Path) -> dict[str, Any] | None:
    return jsonl.read(path) if path.exists() else None
