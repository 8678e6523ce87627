"""What trials of the calibration answer; GB are 2**30 bytes."""

from __future__ import annotations

from typing import TypedDict


class Device(TypedDict):
    """Answer to the kind `device`: `kind` is cpu or cuda, `memory_gb` what it has."""

    kind: str
    name: str
    memory_gb: float


class Answer(TypedDict, total=False):
    """Answer to `worst` and `soak`; CUDA adds figures of its allocator. With `oom`: a message, no peaks."""

    oom: bool
    retried: bool  # the allocator had to give cached memory back
    steps: int
    # The batch behind the peak: its step, its rows, padded to `seconds`, with `characters` a row on average.
    heaviest: dict[str, float]
    message: str
    peak_gb: float  # since the process began
    step_peak_gb: float  # of the steps
    fixed_gb: float  # before the first step
