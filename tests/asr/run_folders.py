"""Folders of runs as train_model leaves them, with made-up figures, for tests of the throughput
report."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from millrace.common import atomic, jsonl
from millrace.common.throughput.run import PHASES, StepLine

BUCKETS = {
    # name: (hours, rows, longest seconds)
    "b_0_3": (1.0, 1700, 3.0),
    "b_3_5": (3.0, 2700, 5.0),
    "b_5_7": (5.0, 3000, 7.0),
    "b_7_10": (9.0, 3800, 10.0),
    "b_10_15": (6.0, 1800, 15.0),
}
CPU = {
    "device": "cpu",
    "cpu": "Some CPU",
    "cores": 16.0,
    "torch": "2.13.0",
}
GPU = {**CPU, "device": "NVIDIA H200"}


@dataclass
class MadeUp:
    """A run: `shares` of time by phase, `seconds` a step, `padding` of the audio."""

    name: str
    steps: int = 200
    log_steps: int = 10
    seconds: float = 0.2
    padding: float = 0.02
    shares: dict = field(
        default_factory=lambda: {"data_wait": 0.02, "forward": 0.38, "backward": 0.6}
    )
    mixed: bool = False
    machine: dict = field(default_factory=lambda: dict(CPU))
    gpu: float | None = None
    loss: tuple[float, float] = (3.0, 1.0)
    finished: bool = True
    failed: str | None = None
    facts: dict = field(default_factory=dict)
    omit: tuple[str, ...] = ()
    world_size: int = 1

    def write(self, folder: Path) -> Path:
        """Write it to folder / name; return that."""
        run, rng = folder / self.name, np.random.default_rng(0)
        rows = [self._step(step, rng) for step in range(1, self.steps + 1)]
        starts = range(0, self.steps, self.log_steps)
        windows = [self._window(rows[start : start + self.log_steps]) for start in starts]
        jsonl.write_lines(run / "metrics.jsonl", windows)
        if self.finished:
            atomic.write_json(run / "metrics.json", {"optimizer_steps": self.steps})
        jsonl.write_lines(run / "steps.jsonl", rows)
        facts = {"machine": self.machine, "gpu_use": self.gpu, "failed": self.failed}
        facts |= {"model": "ctc", "precision": "32-true"}
        atomic.write_json(run / "throughput.json", {**facts, **self.facts})
        return run

    def _step(self, step: int, rng: np.random.Generator) -> StepLine:
        hours = np.array([bucket[0] for bucket in BUCKETS.values()])
        name = str(rng.choice(list(BUCKETS), p=hours / hours.sum()))
        longest = 15.0 if self.mixed else BUCKETS[name][2]
        batch = max(1, int(240.0 / longest))
        padded = batch * longest * rng.uniform(0.97, 1.0)
        audio = padded * (1 - self.padding * rng.uniform(0.8, 1.2))
        mix = dict.fromkeys(BUCKETS, (batch // 5, audio / 5))
        return StepLine(
            step=step,
            bucket=None if self.mixed else name,
            batches=1,
            samples=batch,
            audio_seconds=audio,
            padded_audio_seconds=padded,
            buckets=mix if self.mixed else {name: (batch, audio)},
            seconds=self.seconds * rng.uniform(0.9, 1.1) * (5 if step == 1 else 1),
            peak_memory_bytes=int(1e9 + 3e7 * longest) + step,
        )

    def _window(self, steps: list[StepLine]) -> dict:
        """A line of metrics.jsonl over these steps."""
        seconds = sum(row["seconds"] for row in steps)
        names = ("samples", "audio_seconds", "padded_audio_seconds")
        sums = {name: sum(row[name] for row in steps) for name in names}
        sums |= {
            "tokens": sums["audio_seconds"] * 13,
            "padded_tokens": sums["padded_audio_seconds"] * 13.2,
        }
        sums = {name: value for name, value in sums.items() if name not in self.omit}
        units = [name for name in sums if f"padded_{name}" in sums]
        first, last = self.loss
        return {
            "event": "train",
            "step": steps[-1]["step"],
            "epoch": 0,
            "world_size": self.world_size,
            "loss": first + (last - first) * steps[-1]["step"] / self.steps,
            "weight": float(sums.get("samples", 1)),
            "seconds": seconds,
            "time_share": {name: self.shares.get(name, 0.0) for name in PHASES},
            "counts": sums,
            "per_second": {name: value / seconds for name, value in sums.items()},
            "padding": {name: 1 - sums[name] / sums[f"padded_{name}"] for name in units},
        }


def bucket_config(folder: Path, **samples: int) -> Path:
    """A bucket_config.json with BUCKETS, some of them with so many rows."""
    named = []
    for name, (hours, rows, _) in BUCKETS.items():
        named.append({"bucket_id": name, "hours": hours, "samples": samples.get(name, rows)})
    atomic.write_json(folder / "bucket_config.json", {"buckets": named})
    return folder / "bucket_config.json"


# Of a pipeline without buckets.
BASELINE = {
    "seconds": 0.55,
    "padding": 0.47,
    "mixed": True,
    "gpu": 0.4,
    "loss": (3.0, 2.6),
    "shares": {"data_wait": 0.6, "forward": 0.4},
}


def write_runs(folder: Path, **changed: dict) -> dict[str, Path]:
    """Runs on a GPU that meet all criteria, but for what is changed by role; their folders."""
    made = {
        "bench": {"gpu": 0.95},
        "baseline": BASELINE,
        "check": {"steps": 50, "log_steps": 5},
        "profile": {"steps": 20, "log_steps": 5},
    }
    folders = {}
    for role, facts in made.items():
        run = MadeUp(role, **{"machine": GPU, **facts, **changed.get(role, {})})
        folders[role] = run.write(folder)
    return folders
