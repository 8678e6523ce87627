"""What a run writes while it trains: metrics.jsonl, TensorBoard events, log lines, sample ids; and
which lines are cut off after a resume."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import orjson
import torch

from millrace.common import atomic, jsonl, progress
from millrace.common.cli import log
from millrace.common.training.position import Position
from millrace.common.training.settings import LoopSettings

METRICS = "metrics.jsonl"


def truncate(path: Path, step: int) -> None:
    """Remove the lines past optimiser step `step`, which will be written again, and a cut line."""
    if not path.exists():
        return
    lines = []
    with open(path, "rb") as handle:
        for raw in handle:
            with contextlib.suppress(ValueError, KeyError, TypeError):
                number = orjson.loads(raw)["step"]
                if raw.endswith(b"\n") and number <= step:
                    lines.append(raw)
    atomic.write_if_changed(path, b"".join(lines))


class RunLog:
    """The log of one rank: rank 0 writes metrics, every rank its ids (where asked for).

    `resumed_step` is the optimiser step the run goes on from, -1 for one that begins.
    """

    def __init__(self, folder: Path, rank: int, resumed_step: int, settings: LoopSettings) -> None:
        self._metrics = open(folder / METRICS, "ab") if rank == 0 else None  # noqa: SIM115 - as long as the run
        self._ids = open(folder / f"sample_ids.{rank}.jsonl", "ab") if settings.log_ids else None  # noqa: SIM115
        self._board = None
        # Step and time from which on the rate is measured.
        self._first: tuple[int, float] | None = None
        self._total = 0
        if rank == 0 and settings.tensorboard:
            from torch.utils.tensorboard import SummaryWriter

            self._board = SummaryWriter(str(folder / "tensorboard"), purge_step=resumed_step + 1)

    def step(self, step: int, total_steps: int) -> None:
        """Note that a step is done, and how many steps the run has."""
        self._total = total_steps
        self._first = self._first or (step, time.monotonic())

    def ids(self, step: int, epoch: int, ids: list[int | str]) -> None:
        if self._ids is not None:
            self._write(self._ids, {"step": step, "epoch": epoch, "ids": ids})

    def line(self, event: str, step: int, figures: dict[str, Any]) -> None:
        """Write one line of metrics.jsonl, its numbers to TensorBoard, and its gist to the log."""
        if self._metrics is None:
            return
        self._write(self._metrics, {"event": event, "step": step, **figures})
        if self._board is not None:
            for name, value in _scalars(event, figures):
                self._board.add_scalar(name, value, step)
            self._board.flush()
        if event == "train":
            left = self._seconds_left(step)
            gist = self._gist(figures)
            log.info("%s", progress.line(step, self._total, "steps", left, *gist))
        elif event == "eval":
            shown = ", ".join(f"{name} {value:.4g}" for name, value in figures["metrics"].items())
            log.info("step %d: held-out %s", step, shown or "data: none")

    def _seconds_left(self, step: int) -> float | None:
        if self._first is None or step == self._first[0]:
            return None
        first, since = self._first
        return (time.monotonic() - since) / (step - first) * (self._total - step)

    @staticmethod
    def _gist(figures: dict[str, Any]) -> list[str]:
        rates = figures["per_second"]
        padding = figures["padding"]
        parts = [f"loss {figures['loss']:.4f}" if figures["loss"] is not None else "no samples"]
        parts.append(f"{rates.get('samples', 0.0):.1f} samples/s")
        if "audio_seconds" in rates:
            parts.append(f"{rates['audio_seconds']:.0f} audio-s/s")
        if padding:
            share = padding.get("audio_seconds", next(iter(padding.values())))
            parts.append(f"padding {100 * share:.1f} %")
        parts.append(f"data wait {100 * figures['time_share']['data_wait']:.1f} %")
        return parts

    @staticmethod
    def _write(handle: BinaryIO, line: dict[str, Any]) -> None:
        handle.write(
            orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE | orjson.OPT_SERIALIZE_NUMPY)
        )
        handle.flush()

    def sync(self) -> None:
        """Bring the lines to the disk, so that a checkpoint never knows more than they do."""
        for handle in (self._metrics, self._ids):
            if handle is not None:
                os.fsync(handle.fileno())

    def __enter__(self) -> RunLog:
        return self

    def __exit__(self, *exc: object) -> None:
        for thing in (self._metrics, self._ids, self._board):
            if thing is not None:
                thing.close()


def _scalars(prefix: str, figures: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """Names and numbers; names with a / of their own are left as they are."""
    for name, value in figures.items():
        if isinstance(value, dict):
            yield from _scalars(f"{prefix}/{name}", value)
        elif isinstance(value, int | float):
            yield name if "/" in name else f"{prefix}/{name}", float(value)


@dataclass
class Result:
    """`model` is the trained one, the same on every rank (`digest` is of its bits).

    `loss`: last line of metrics.jsonl; `evaluations`: metrics by step; `resumed_step`: None if it
    began anew.
    """

    model: torch.nn.Module
    position: Position
    loss: float | None
    evaluations: dict[int, dict[str, float]]
    resumed_step: int | None
    digest: int

    def summary(self) -> dict[str, Any]:
        """For metrics.json: counts, the last loss, the first and last evaluation."""
        evaluations = [
            {"step": step, **metrics} for step, metrics in sorted(self.evaluations.items())
        ]
        return {
            "epochs": self.position.epoch,
            "optimizer_steps": self.position.optimizer_step,
            "samples": self.position.samples,
            "seconds": self.position.seconds,
            "loss": self.loss,
            "first_evaluation": evaluations[0] if evaluations else None,
            "last_evaluation": evaluations[-1] if evaluations else None,
        }


def known(path: Path) -> tuple[float | None, dict[int, dict[str, float]]]:
    """The last loss and the evaluations that a metrics.jsonl holds, as `truncate` has left it."""
    rows = jsonl.whole_lines(path)
    losses = [row["loss"] for row in rows if row["event"] == "train"]
    evaluations = {row["step"]: _with_nan(row["metrics"]) for row in rows if row["event"] == "eval"}
    return losses[-1] if losses else None, evaluations


def _with_nan(metrics: dict[str, float | None]) -> dict[str, float]:
    """Metrics as they were evaluated: JSON has no NaN, so that a line holds null for it."""
    return {name: math.nan if value is None else value for name, value in metrics.items()}
