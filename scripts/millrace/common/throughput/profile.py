"""A few steps of a run under PyTorch's profiler: a trace (for Perfetto), and times by phase.

    with StepProfiler(folder, 20, device) as profiler:
        loop.train(task, settings, folder, on_step=profiler.on_step)

The loop marks its steps and phases, a model the parts of its forward pass (see meters.part).
Profiled steps are slower than others: read shares here, rates in the benchmark.
"""

from __future__ import annotations

import gzip
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch.autograd import DeviceType
from torch.autograd.profiler_util import FunctionEvent
from torch.profiler import ProfilerActivity, profile, schedule

from millrace.common import atomic
from millrace.common.throughput.run import PROFILE
from millrace.common.training.meters import MARK

TRACE = "trace.json.gz"
_SKIPPED = 3  # steps before those that are profiled: they start workers and allocate
_BACKWARD = "autograd::engine::evaluate_function"


class StepProfiler:
    """A context around a run: profiles `steps` steps after the first ones (fewer if the run ends
    before).

    Writes trace and table unless the run fails.
    """

    def __init__(self, folder: Path, steps: int, device: str) -> None:
        self.folder = folder
        activities = [ProfilerActivity.CPU]
        if torch.device(device).type == "cuda":
            activities.append(ProfilerActivity.CUDA)
        self._profile = profile(
            activities=activities,
            schedule=schedule(skip_first=_SKIPPED - 1, wait=0, warmup=1, active=steps, repeat=1),
            on_trace_ready=self._write,
            acc_events=True,
        )
        self._failed = False

    def __enter__(self) -> StepProfiler:
        self._profile.start()
        return self

    def __exit__(self, kind: type | None, *error: object) -> None:
        self._failed = kind is not None
        self._profile.stop()

    def watch(self, batches: Iterable[Any]) -> Iterable[Any]:
        """The same batches, as StepRecorder's: the loop itself marks the waits for them."""
        return batches

    def on_step(self, step: int) -> None:
        self._profile.step()

    def _write(self, running: profile) -> None:
        phases = table(running.events())
        if self._failed or not phases["steps"]:
            return
        with (
            tempfile.TemporaryDirectory() as scratch,
            atomic.replacing(self.folder / TRACE) as partial,
            # PyTorch compresses at the highest level, line by line: that takes ten times as long.
            gzip.open(partial, "wb", compresslevel=1) as compressed,
        ):
            running.export_chrome_trace(f"{scratch}/trace.json")
            with open(f"{scratch}/trace.json", "rb") as trace:
                shutil.copyfileobj(trace, compressed, 1 << 20)
        atomic.write_json(self.folder / PROFILE, phases)


def table(events: Iterable[FunctionEvent]) -> dict[str, Any]:
    """Times of the profiled steps by phase, and by part of the forward pass; operators are in the
    trace.

    `host_seconds` are those within the phase, `device_seconds` those of the kernels that it
    started.
    """
    steps = 0
    seconds = 0.0
    host: dict[str, float] = defaultdict(float)
    device: dict[str, float] = defaultdict(float)
    for event in events:
        if event.device_type != DeviceType.CPU:
            continue
        phase = event.name.removeprefix(MARK)
        if phase == event.name:
            # On a GPU the backward pass runs in a thread of its own, outside of its mark.
            if phase.startswith(_BACKWARD) and event.cpu_parent is None:
                device["backward"] += event.device_time_total / 1e6
        elif phase == "step":
            steps += 1
            seconds += event.time_range.elapsed_us() / 1e6
        else:
            host[phase] += event.time_range.elapsed_us() / 1e6
            device[phase] += event.device_time_total / 1e6
    phases = [
        {"phase": phase, "host_seconds": host[phase], "device_seconds": device[phase]}
        for phase in host
    ]
    return {"steps": steps, "seconds": seconds, "phases": phases, "trace": TRACE}
