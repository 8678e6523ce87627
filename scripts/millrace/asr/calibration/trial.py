"""One trial of the batch-size calibration, in a process of its own: how it is started, and when its
death means that memory has run out.

A request (see `steps.answer`) and its answer are JSON on stdin and stdout; libraries print to
stderr.
"""

from __future__ import annotations

import contextlib
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
from millrace.common.processes import TRAINING_ENVIRONMENT, die_with_parent

ROOT = Path(__file__).resolve().parents[3]


def ask(request: Mapping[str, Any]) -> Any:
    """The Answer or Device of a trial; {"oom": True, ...} if the process died for lack of memory.

    Raises MillraceError for what the trial refuses and for a process that ends in another way.
    """
    command = [sys.executable, "-c", "from millrace.asr.calibration.trial import main; main()"]
    request_bytes = json.dumps(request).encode()
    # On any exception, Ctrl+C too, `run` kills the trial and waits for it.
    trial = subprocess.run(command, env=environment(), input=request_bytes, capture_output=True)
    text = trial.stderr.decode(errors="replace")
    answer = None
    with contextlib.suppress(ValueError):
        answer = json.loads(trial.stdout)
    if answer is not None and "error" in answer:
        raise MillraceError(*answer["error"])
    if trial.returncode == 0 and answer is not None:
        return answer
    problem = f"the trial process exited with code {trial.returncode}"
    if trial.returncode == -signal.SIGKILL or says_out_of_memory(text):
        # The kernel kills what takes too much; C++ code may abort if an allocation fails.
        return {
            "oom": True,
            "steps": 0,
            "heaviest": {},
            "message": problem,
        }
    remedy = (
        "This is no lack of memory. Does the model train on one batch (asr_train with max_steps 1)?"
    )
    raise MillraceError(f"{problem}; stderr:\n{text[-1500:].strip()}", remedy=remedy)


def environment() -> dict[str, str]:
    """That of a training run."""
    path = str(ROOT)
    if os.environ.get("PYTHONPATH"):
        path += os.pathsep + os.environ["PYTHONPATH"]
    return {**TRAINING_ENVIRONMENT, **os.environ, "PYTHONPATH": path}


def main() -> None:
    """Answer the request on stdin; {"error": ...} and code 1 for what the user can mend."""
    # An orphan would hold memory of the device that the next calibration measures.
    die_with_parent(signal.SIGKILL)
    answer_to = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries print
    from millrace.asr.calibration import steps  # loads torch

    try:
        answer: Mapping[str, Any] = steps.answer(json.load(sys.stdin))
    except MillraceError as error:
        answer = {"error": [error.problem, error.where, error.remedy]}
    answer_to.write(json.dumps(answer))
    answer_to.close()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1 if "error" in answer else 0)  # at once: threads may hold memory
