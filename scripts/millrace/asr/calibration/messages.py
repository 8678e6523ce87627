"""What a trial is asked, and what it answers; GB are 2**30 bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict


class Device(TypedDict):
    """Answer to the kind `device`: `kind` is cpu or cuda, `memory_gb` what it has."""

    kind: str
    name: str
    memory_gb: float


class Shape(TypedDict, total=False):
    """A batch: rows, padded to `seconds`, with `characters` a row on average, at `step` of the trial."""

    step: int
    rows: int
    seconds: float
    characters: float


class Answer(TypedDict, total=False):
    """Answer to `worst` and `soak`. A trial without memory (`oom`) has a message instead of peaks; CUDA adds
    figures of its allocator. `retried`: the allocator had to give cached memory back."""

    oom: bool
    retried: bool
    steps: int
    heaviest: Shape
    message: str
    peak_gb: float  # since the process began
    step_peak_gb: float  # of the steps
    fixed_gb: float  # before the first step


class Request(TypedDict, total=False):
    """By `kind`: `device`, the facts of that device; `worst`, `steps` steps of one batch of `rows` worst-case
    samples; `soak`, `steps` steps of shuffled batches of `rows` of bucket number `bucket`."""

    kind: str
    device: str
    options: Mapping[str, Any]  # of TrainOptions
    settings: Mapping[str, Any]  # of LoopSettings
    limit_gb: float
    world_size: int
    rows: int
    steps: int
    audio_rows: list[int]
    text_rows: list[int]
    bucket: int
