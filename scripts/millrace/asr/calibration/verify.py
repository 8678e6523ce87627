"""A soak of all buckets at their calibrated sizes, on all ranks of a run: what one device leaves open."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from millrace.asr.calibration import known_devices
from millrace.asr.calibration.bucket import Choices
from millrace.common import atomic
from millrace.common.cli import log
from millrace.common.errors import MillraceError


def verify(choices: Choices, calibrated: Path | None, output: Path) -> dict[str, Any]:
    """Run the soak of `calibrated` on this rank, and on rank 0 write `output`: peak and steps of every rank.

    Raises MillraceError, on every rank, where any rank went out of memory or above the limit.
    """
    from millrace.common.training import devices
    from millrace.common.training.ranks import Ranks

    if calibrated is None:
        raise MillraceError(
            "--mode verify_all needs --calibrated", remedy="Name the merged calibrated_bs.json"
        )
    if choices.device not in known_devices.HERE:
        remedy = "Verify on that device; what is estimated is no more than an estimate"
        raise MillraceError(
            f"{choices.device} is not here to verify anything", where="--device", remedy=remedy
        )
    with devices.peers(Ranks.from_environment(), str(calibrated)):
        return _verify(choices, calibrated, output)


def _verify(choices: Choices, calibrated: Path, output: Path) -> dict[str, Any]:
    from millrace.asr.calibration import search, trial
    from millrace.asr.calibration.steps import TrialSteps
    from millrace.asr.training.options import TrainOptions
    from millrace.asr.training.task import AsrTask
    from millrace.common.training.settings import LoopSettings

    device = trial.device_facts(choices.device)
    limit = choices.limit_gb(device)
    task = AsrTask(TrainOptions(**choices.options, bucket_config=str(calibrated)))
    with contextlib.closing(task):
        steps = TrialSteps(task, LoopSettings(**choices.settings(device["kind"])), limit)
        answer = trial.soak(task, steps, {"bucket": None, "steps": max(choices.soak_steps, 1)})
    peak = answer.get("peak_gb")
    problem = ""
    if answer["oom"] or peak > limit:
        problem = f"rank {steps.rank}: {search.Search(limit, 0).why_not(answer)}"
        if answer["oom"] and steps.world_size > 1:
            # The others wait in the middle of a step: they end when this rank's sockets close.
            raise MillraceError(problem, where=str(calibrated), remedy=_LOWER)
    ranks = _gathered({"rank": steps.rank, "problem": problem, **answer}, steps.world_size)
    if problems := [rank["problem"] for rank in ranks if rank["problem"]]:
        raise MillraceError("; ".join(problems), where=str(calibrated), remedy=_LOWER)
    found = {
        "device": device["name"],
        "limit_gb": limit,
        "world_size": steps.world_size,
        "steps": answer["steps"],
        "peak_memory_gb": max(rank["peak_gb"] for rank in ranks),
        "ranks": ranks,
    }
    if steps.rank == 0:
        atomic.write_json(output, found)
        log.info(
            "%d ranks, %d steps: peak %.3f GB", steps.world_size, found["steps"], found["peak_memory_gb"]
        )
    return found


_LOWER = "Calibrate with --world-size as here and a lower --max_memory_gb, and merge again"


def _gathered(value: dict[str, Any], world_size: int) -> list[dict[str, Any]]:
    from millrace.common.training.ranks import Exchange

    return Exchange(world_size).gathered(value)
