"""One trial of the batch-size calibration, in a process of its own, which calls `main`.

Takes a JSON request on stdin and answers in JSON on stdout; whatever else is printed goes to stderr. See
`run`.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from millrace.common.errors import MillraceError
from millrace.common.machine.memory import says_out_of_memory
from millrace.common.training.ranks import ENVIRONMENT

_PR_SET_PDEATHSIG = 1


def run(request: Mapping[str, Any]) -> dict[str, Any]:
    """Answer a request by its `kind`.

    `device`: what `device` (auto, cpu, cuda) is: name, memory. `worst`: `steps` steps of `rows` worst-case
    samples. `soak`: `steps` steps of shuffled batches of `rows` of one bucket. `estimate`: `worst` without a
    device, in theory. The last three say `oom`, peak_gb and more, see TrialSteps.run. Raises MillraceError.
    """
    if request["kind"] == "device":
        return device_facts(request["device"])
    if request["kind"] == "estimate":
        from millrace.asr.calibration.device_estimate import estimate

        return estimate(request)
    from millrace.asr.calibration.steps import TrialSteps, worst_batch
    from millrace.asr.training.options import TrainOptions
    from millrace.asr.training.task import AsrTask
    from millrace.common.training.settings import LoopSettings

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
    """Step over shuffled batches of `request["rows"]` rows of the bucket `request["bucket"]`, or, where that
    is None, over batches of all buckets within the task's budgets."""
    from millrace.asr.calibration.steps import SoakPlan
    from millrace.asr.planning.cut import BatchBudget

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

    from millrace.common.machine.memory import GB, host_memory

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
    os._exit(
        1 if "error" in answer else 0
    )  # at once: nothing of use is left to do, and threads may hold memory


ROOT = Path(__file__).resolve().parents[3]
_SHOWN = 1500  # characters of a trial's last words


def ask(request: Mapping[str, Any]) -> dict[str, Any]:
    """The answer of millrace.asr.calibration.trial to `request`; {"oom": True} where the process died of it.

    Raises MillraceError for what the trial refuses and for a process that ends in another way.
    """
    trial = subprocess.Popen(
        [sys.executable, "-c", "from millrace.asr.calibration.trial import main; main()"],
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        out, err = trial.communicate(json.dumps(dict(request)).encode())
    except BaseException:
        trial.kill()
        trial.wait()
        raise
    text = err.decode(errors="replace")
    try:
        answer = json.loads(out)
    except ValueError:
        answer = None
    if answer is not None and "error" in answer:
        raise MillraceError(*answer["error"])
    if trial.returncode == 0 and answer is not None:
        return answer
    if trial.returncode == -signal.SIGKILL or says_out_of_memory(text):
        # The kernel ends what takes too much; C++ code may abort where an allocation fails.
        return {
            "oom": True,
            "steps": 0,
            "heaviest": {},
            "message": f"the trial ended with code {trial.returncode}",
        }
    raise MillraceError(
        f"a trial ended with code {trial.returncode}; its last words:\n{text[-_SHOWN:].strip()}",
        remedy="This is no lack of memory. Does the model train on one batch (asr_train with max_steps 1)?",
    )


def environment() -> dict[str, str]:
    """That of a training run, and of one process: what torchrun says of ranks is left out."""
    names = (
        "RANK",
        "WORLD_SIZE",
        "LOCAL_RANK",
        "LOCAL_WORLD_SIZE",
        "GROUP_RANK",
        "MASTER_ADDR",
        "MASTER_PORT",
    )
    kept = {
        name: value for name, value in os.environ.items() if name not in names and "TORCHELASTIC" not in name
    }
    path = os.pathsep.join([str(ROOT), *filter(None, [kept.get("PYTHONPATH")])])
    return {
        **kept,
        **{name: os.environ.get(name, value) for name, value in ENVIRONMENT.items()},
        "PYTHONPATH": path,
    }
