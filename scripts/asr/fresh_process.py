"""Ask a fresh process for a trial: whatever happens to it, memory that ran out included, harms nothing here."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scripts.asr.memory_meter import says_out_of_memory
from scripts.common.errors import MillraceError
from scripts.common.ranks import ENVIRONMENT

ROOT = Path(__file__).resolve().parents[2]
_SHOWN = 1500  # characters of a trial's last words


def ask(request: Mapping[str, Any]) -> dict[str, Any]:
    """The answer of scripts.asr.trial to `request`; {"oom": True} where the process died of it.

    Raises MillraceError for what the trial refuses and for a process that ends in another way.
    """
    trial = subprocess.Popen(
        [sys.executable, "-c", "from scripts.asr.trial import main; main()"],
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
        return {"oom": True, "steps": 0, "heaviest": {}, "message": f"the trial ended with code {trial.returncode}"}
    raise MillraceError(
        f"a trial ended with code {trial.returncode}; its last words:\n{text[-_SHOWN:].strip()}",
        remedy="This is no lack of memory. Does the model train on one batch (asr_train with max_steps 1)?",
    )


def environment() -> dict[str, str]:
    """That of a training run, and of one process: what torchrun says of ranks is left out."""
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")
    kept = {name: value for name, value in os.environ.items() if name not in names and "TORCHELASTIC" not in name}
    path = os.pathsep.join([str(ROOT), *filter(None, [kept.get("PYTHONPATH")])])
    return {**kept, **{name: os.environ.get(name, value) for name, value in ENVIRONMENT.items()}, "PYTHONPATH": path}
