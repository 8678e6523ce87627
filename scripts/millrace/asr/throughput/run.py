"""A training run as its folder tells it: metrics.jsonl, metrics.json, steps.jsonl, throughput.json,
profile.json."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from millrace.common import jsonl
from millrace.common.errors import MillraceError

METRICS, SUMMARY = "metrics.jsonl", "metrics.json"
# Written by step_recorder and step_profile; named here, where torch is not needed.
STEPS, FACTS, PROFILE = "steps.jsonl", "throughput.json", "profile.json"
# Of a step's time, in its order. "decode" is what the training process spends on reading and decoding itself.
PHASES = ("decode", "data_wait", "copy", "forward", "backward", "sync", "optimiser", "idle")
UNITS = ("audio_seconds", "tokens", "flops")


@dataclass
class Run:
    """Rates and shares are those of the steady part: without the first line of the log, where there are three
    or more (it holds the start of the workers and the first allocations). None stands for what was not
    measured."""

    name: str
    windows: list[dict[str, Any]]
    summary: dict[str, Any] | None
    steps: list[dict[str, Any]] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    profile: dict[str, Any] | None = None

    @classmethod
    def read(cls, folder: str | Path) -> Run:
        """The run in `folder`. Raises MillraceError where it has logged nothing; the rest may be missing."""
        folder = Path(folder)
        lines = _lines(folder / METRICS)
        windows = [line for line in lines if line.get("event") == "train" and _number(line.get("seconds"))]
        if not windows:
            raise MillraceError(
                "no training step was logged here",
                where=str(folder / METRICS),
                remedy="Run it: snakemake asr_train",
            )
        return cls(
            folder.name,
            windows,
            _document(folder / SUMMARY),
            [line for line in _lines(folder / STEPS) if _number(line.get("seconds"))],
            _document(folder / FACTS) or {},
            _document(folder / PROFILE),
        )

    @cached_property
    def steady(self) -> list[dict[str, Any]]:
        return self.windows[1:] if len(self.windows) >= 3 else self.windows

    @cached_property
    def steady_steps(self) -> list[dict[str, Any]]:
        """The recorded steps of the steady part."""
        first = self.windows[0]["step"] if len(self.windows) >= 3 else 0
        found = [line for line in self.steps if line["step"] > first]
        return found or self.steps

    @property
    def seconds(self) -> float:
        return math.fsum(line["seconds"] for line in self.steady)

    @property
    def done_steps(self) -> int:
        return int(self.windows[-1]["step"])

    @property
    def finished(self) -> bool:
        """Whether the run came to its end: metrics.json is written last."""
        return self.summary is not None and not self.failed

    @property
    def failed(self) -> str | None:
        return self.facts.get("failed")

    @property
    def world_size(self) -> int:
        return int(self.windows[-1].get("world_size", 1))

    @property
    def machine(self) -> dict[str, Any]:
        return self.facts.get("machine") or {}

    def use(self, name: str) -> float | None:
        """A figure of the sampler: `gpu`, `cpu`, `trainer_cpu`, `workers_cpu` (0 to 1)."""
        return _number((self.facts.get("use") or {}).get(name))

    def rate(self, count: str) -> float | None:
        """Of a count (`samples`, `audio_seconds`), how many a second, on all ranks."""
        return _over(self.steady, lambda line: line["counts"].get(count), lambda line: line["seconds"])

    def window_rates(self, count: str) -> list[float]:
        """The same of every line of the log."""
        rates = (_rate_of(line, count) for line in self.steady)
        return [rate for rate in rates if rate is not None]

    def padding(self, unit: str) -> float | None:
        """Share of a unit (0 to 1) that is padding, over the whole run: how it was planned has no warm-up."""
        useful = _over(
            self.windows, lambda c: c["counts"].get(unit), lambda c: c["counts"].get(f"padded_{unit}")
        )
        return None if useful is None else 1 - useful

    def window_padding(self, unit: str) -> list[float]:
        found = (_number(line.get("padding", {}).get(unit)) for line in self.windows)
        return [share for share in found if share is not None]

    @cached_property
    def shares(self) -> dict[str, float]:
        """Share of time by phase (0 to 1); they add up to 1. On a GPU it is the device's time.

        "decode" is taken out of the wait for data, as far as the run says that its loader decodes while
        training waits.
        """
        whole = self.seconds
        names = [name for name in PHASES if name != "decode"]
        found = {
            name: math.fsum(line["seconds"] * line["time_share"].get(name, 0.0) for line in self.steady)
            / whole
            for name in names
        }
        own = math.fsum(
            step.get(f"{part}_seconds", 0.0) for step in self.steady_steps for part in ("read", "decode")
        )
        spent = math.fsum(step["seconds"] for step in self.steady_steps)
        decode = min(found["data_wait"], own / spent) if spent else 0.0
        found["data_wait"] -= decode
        return {"decode": decode, **found}

    @cached_property
    def peak_memory(self) -> int | None:
        """Bytes at most: of the GPU's allocator, or else the resident set of the trainer; of the fullest rank
        known."""
        seen = [self.facts.get("peak_memory_bytes")]
        seen += [line.get("peak_memory_bytes") for line in (*self.windows, *self.steps)]
        return max((int(size) for size in seen if size), default=None)

    @property
    def lost_samples(self) -> int | None:
        """Samples left out as unusable, where steps were recorded."""
        return sum(step["planned"] - step["samples"] for step in self.steps) if self.steps else None

    def held_out_loss(self) -> float | None:
        """The loss of the last evaluation."""
        return _number(((self.summary or {}).get("last_evaluation") or {}).get("loss"))

    def training_loss(self, part: Callable[[int], slice]) -> float | None:
        """Mean training loss of a part of the lines, by what it is a mean over; `part` is given their
        number."""
        lines = [line for line in self.windows if _number(line.get("loss")) is not None]
        return _over(
            lines[part(len(lines))],
            lambda c: c["loss"] * c.get("weight", 1.0),
            lambda c: c.get("weight", 1.0),
        )


def first_quarter(lines: int) -> slice:
    return slice(0, max(1, lines // 4))


def last_quarter(lines: int) -> slice:
    return slice(lines - max(1, lines // 4), lines)


def _rate_of(line: dict[str, Any], count: str) -> float | None:
    value = _number(line["counts"].get(count))
    return None if value is None or not line["seconds"] else value / line["seconds"]


def _over(lines: list, above: Callable[[Any], Any], below: Callable[[Any], Any]) -> float | None:
    """Sum over sum; None where anything is missing or nothing is below."""
    pairs = [(_number(above(line)), _number(below(line))) for line in lines]
    if not pairs or any(None in pair for pair in pairs):
        return None
    whole = math.fsum(pair[1] for pair in pairs)
    return math.fsum(pair[0] for pair in pairs) / whole if whole > 0 else None


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _lines(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a log; one that a killed run left behind is left out."""
    if not path.exists():
        return []
    rows = [row for _, row, _ in jsonl.lines(path)]
    return [row for row in rows if isinstance(row, dict) and isinstance(row.get("step"), int)]


def _document(path: Path) -> dict[str, Any] | None:
    try:
        found = jsonl.read(path)
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise MillraceError(
            f"not JSON ({error})", where=str(path), remedy="Remove the run and make it again"
        ) from None
    return found if isinstance(found, dict) else None
