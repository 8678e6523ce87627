"""One trial of the batch-size calibration, in a process of its own, which calls `main`.

Takes a JSON request on stdin and answers in JSON on stdout; whatever else is printed goes to stderr. See `run`.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import sys
from collections.abc import Mapping
from typing import Any

from scripts.common.errors import MillraceError

# A part of the calibration key: raise it when trials measure something else than before.
VERSION = 1
_PR_SET_PDEATHSIG = 1


def run(request: Mapping[str, Any]) -> dict[str, Any]:
    """Answer a request by its `kind`.

    `device`: what `device` (auto, cpu, cuda) is: name, memory. `worst`: `steps` steps of `rows` worst-case samples.
    `soak`: `steps` steps of shuffled batches of `rows` of one bucket. `estimate`: `worst` without a device, in theory.
    The last three say `oom`, peak_gb and more, see TrialSteps.run. Raises MillraceError.
    """
    if request["kind"] == "device":
        return device_facts(request["device"])
    if request["kind"] == "estimate":
        from scripts.asr.device_estimate import estimate

        return estimate(request)
    from scripts.asr.asr_task import AsrTask
    from scripts.asr.run_options import TrainOptions
    from scripts.asr.trial_steps import TrialSteps, worst_batch
    from scripts.common.loop_settings import LoopSettings

    task = AsrTask(TrainOptions(**request["options"]))
    settings = LoopSettings(**request["settings"])
    steps = TrialSteps(task, settings, request["limit_gb"], request["world_size"])
    if request["kind"] == "worst":
        model = steps.updates.model
        batch = worst_batch(task, model, request["audio_rows"], request["text_rows"], request["rows"])
        steps.meter.begin()
        return steps.run([batch] * request["steps"])
    return soak(task, steps, request)


def soak(task: Any, steps: Any, request: Mapping[str, Any]) -> dict[str, Any]:
    """Step over shuffled batches of `request["rows"]` rows of the bucket `request["bucket"]`, or, where that is None,
    over batches of all buckets within the task's budgets."""
    from scripts.asr.batch_cut import BatchBudget
    from scripts.asr.soak import SoakPlan

    bucket, seed = request["bucket"], task.options.seed
    if bucket is None:
        plan = SoakPlan(task.durations, task.budgets, request["steps"], seed, steps.world_size)
    else:
        first = sum(map(len, task.durations[:bucket]))
        budget = BatchBudget(seconds=None, rows=request["rows"])
        plan = SoakPlan([task.durations[bucket]], [budget], request["steps"], seed, steps.world_size, first)
    batches = iter(task.batches(plan, 0, steps.rank))
    steps.meter.begin()
    return steps.run(batches, stop=steps.world_size == 1)


def device_facts(device: str) -> dict[str, Any]:
    """Kind, name and memory of a device. Raises MillraceError where cuda is asked for and there is none."""
    import torch

    from scripts.asr.memory_meter import GB, host_memory

    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda":
        if not torch.cuda.is_available():
            remedy = "Choose cpu, or the name of the device to estimate for"
            raise MillraceError("there is no CUDA device that torch can use", remedy=remedy)
        found = torch.cuda.get_device_properties(0)
        return {"kind": "cuda", "name": found.name, "memory_gb": round(found.total_memory / GB, 1)}
    return {"kind": "cpu", "name": "cpu", "memory_gb": round(host_memory() / GB, 1)}


def main() -> int:
    """0 with an answer; 1 with {"error": ...} for what the user can mend."""
    with contextlib.suppress(OSError, AttributeError):
        # An orphan would hold memory of the device that the next calibration measures.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    answer_to = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries print
    try:
        answer = run(json.load(sys.stdin))
    except MillraceError as error:
        answer = {"error": [error.problem, error.where, error.remedy]}
    answer_to.write(json.dumps(answer))
    answer_to.close()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1 if "error" in answer else 0)  # at once: nothing of use is left to do, and threads may hold memory
