"""A few steps of a run under PyTorch's profiler: a trace (for Perfetto), and times by phase.

    with StepProfiler(folder, 20, device) as profiler:
        loop.train(task, settings, folder, on_step=profiler.on_step)

The loop marks its steps and phases, a model the parts of its forward pass (see meters.part).
Profiled steps are slower than others: read shares here, rates in the benchmark.
"""

from __future__ import annotations

import math
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.autograd import DeviceType
from torch.autograd.profiler_util import FunctionEvent
from torch.profiler import ProfilerActivity, profile, schedule

from millrace.common import atomic
from millrace.common.throughput.run import PROFILE
from millrace.common.training.meters import MARK

Span = tuple[float, float]  # begin and end, in seconds

TRACE = "trace.json.gz"
# The phases in the order of a step; the loop marks most of them. 2 are the parts of the forward
# pass.
_ORDER = {
    "data wait": 0,
    "forward": 1,
    "backward": 3,
    "optimiser": 4,
    "communication": 5,
    "idle": 6,
}
_COLLECTIVES = ("nccl:", "gloo:", "c10d::")  # how torch.distributed names what it does


class StepProfiler:
    """A context around a run: profiles `steps` steps after `skip` others (fewer if the run ends
    before).

    Writes trace and table unless the run fails. On rank 0 only.
    """

    def __init__(
        self, folder: Path, steps: int, device: str, *, skip: int = 3, rank: int = 0
    ) -> None:
        self.folder = folder
        self.device = torch.device(device)
        activities = [ProfilerActivity.CPU]
        if self.device.type == "cuda":
            activities.append(ProfilerActivity.CUDA)
        self._profile = None
        if rank == 0:
            self._profile = profile(
                activities=activities,
                schedule=schedule(
                    skip_first=skip - 1, wait=0, warmup=1, active=max(steps, 1), repeat=1
                ),
                on_trace_ready=self._write,
                acc_events=True,
            )
        self._failed = False

    def __enter__(self) -> StepProfiler:
        if self._profile is not None:
            self._profile.start()
        return self

    def __exit__(self, kind: type | None, *error: object) -> None:
        self._failed = kind is not None
        if self._profile is not None:
            self._profile.stop()

    def watch(self, batches: Iterable[Any]) -> Iterable[Any]:
        """The same batches, as StepRecorder's: the loop itself marks the waits for them."""
        return batches

    def on_step(self, step: int) -> None:
        if self._profile is not None:
            self._profile.step()

    def _write(self, running: profile) -> None:
        if self._failed:
            return
        phases = table(running.events(), self.device.type)
        if not phases["steps"]:
            return
        with (
            tempfile.TemporaryDirectory() as scratch,
            atomic.replacing(self.folder / TRACE) as partial,
        ):
            running.export_chrome_trace(f"{scratch}/{TRACE}")
            shutil.copyfile(f"{scratch}/{TRACE}", partial)
        atomic.write_json(self.folder / PROFILE, phases)


def table(events: Iterable[FunctionEvent], device_type: str) -> dict[str, Any]:
    """Times of the profiled steps by phase; operators are in the trace.

    `phases`: host seconds within the phase, and device seconds of the kernels it started; no moment
    counts in two phases, but for the parts of "forward". "idle" is host time of the steps in no
    phase. NCCL's kernels also spin while they wait for other ranks: they are "communication" where
    no other kernel ran beside them, and never `device_busy_seconds`. `device_seconds` end when the
    device was done with the last step.
    """
    events = list(events)
    marked = _marked(events)
    kernels = _kernels(events)
    steps = marked.pop("step", [])
    run = _until_done(steps, kernels)
    in_steps = {phase: _within(spans, steps) for phase, spans in marked.items()}
    host = _by_phase(in_steps, "communication")
    host["idle"] = max(0.0, _covered(steps) - _of_phases(host))
    in_run = {phase: _within(spans, run) for phase, spans in kernels.items()}
    device = _by_phase(in_run)
    busy = _of_phases(device) - device.get("communication", 0.0)
    phases = sorted(host, key=lambda phase: (_ORDER.get(phase, 2), phase))
    return {
        "steps": len(steps),
        "device": device_type,
        "seconds": _covered(steps),
        "device_seconds": _covered(run) if device_type == "cuda" else None,
        "device_busy_seconds": busy if device_type == "cuda" else None,
        "phases": [
            {"phase": phase, "host_seconds": host[phase], "device_seconds": device.get(phase, 0.0)}
            for phase in phases
        ],
        "trace": TRACE,
    }


def _span(event: FunctionEvent) -> Span:
    return event.time_range.start / 1e6, event.time_range.end / 1e6


def _marked(events: Iterable[FunctionEvent]) -> dict[str, list[Span]]:
    """The host's spans by phase, as the loop and torch.distributed mark them."""
    spans: dict[str, list[Span]] = defaultdict(list)
    for event in events:
        if event.device_type != DeviceType.CPU:
            continue
        if event.name.startswith(MARK):
            spans[event.name.removeprefix(MARK)].append(_span(event))
        elif event.name.startswith(_COLLECTIVES):
            spans["communication"].append(_span(event))
    return spans


def _kernels(events: Iterable[FunctionEvent]) -> dict[str, list[Span]]:
    """The spans of the device's kernels and copies, by the phases that have started them."""
    launchers: dict[int, FunctionEvent] = {}
    for event in events:
        if event.device_type == DeviceType.CPU:
            # The operator, or the driver's call within it: of two operators of one name torch
            # leaves one.
            launchers.setdefault(event.linked_correlation_id or event.id, event)
    spans: dict[str, list[Span]] = defaultdict(list)
    for event in events:
        if event.device_type == DeviceType.CPU or event.is_user_annotation:
            continue  # annotations: the GPU's own copies of the marks
        if "nccl" in event.name.lower():
            phases = ["communication"]
        else:
            phases = _phases_of(launchers.get(event.linked_correlation_id))
        for phase in phases:
            spans[phase].append(_span(event))
    return spans


def _phases_of(event: FunctionEvent | None) -> list[str]:
    """The phase of the step in which an operator ran, and the part of the model; "other" outside of
    all."""
    parts: list[str] = []
    while event is not None:
        label = event.name.removeprefix(MARK)
        if event.name.startswith(_COLLECTIVES):
            return ["communication"]
        if (
            event.name.startswith("autograd::engine::evaluate_function")
            and event.cpu_parent is None
        ):
            # On a GPU the backward pass runs in a thread of its own, outside of the mark.
            return ["backward"]
        if label != event.name and ": " in label:
            parts.append(label)
        elif label != event.name and label != "step":
            return [label, *parts]
        event = event.cpu_parent
    return ["other"]


def _until_done(steps: list[Span], kernels: Mapping[str, list[Span]]) -> list[Span]:
    """The steps, and how long the device went on with them after the host."""
    if not steps:
        return []
    begin = max(end for _, end in steps)
    ends = [end for spans in kernels.values() for _, end in spans]
    return [*steps, (begin, max([begin, *ends]))]


def _by_phase(spans: Mapping[str, list[Span]], first: str = "") -> dict[str, float]:
    """Seconds by phase; a moment in several phases counts in one, in `first` or else in the step's
    order.

    The host calls collectives within the backward pass: there "communication" is `first`. On the
    device it is last, as it is hidden behind other kernels. Parts of a phase are counted by
    themselves.
    """
    parts = {phase: _covered(of) for phase, of in spans.items() if ": " in phase}
    seconds = {}
    before = list[Span]()
    outer = (phase for phase in spans if ": " not in phase)
    for phase in sorted(outer, key=lambda phase: (phase != first, _ORDER.get(phase, 2))):
        seconds[phase] = _covered([*before, *spans[phase]]) - _covered(before)
        before += spans[phase]
    return {**seconds, **parts}


def _of_phases(seconds: Mapping[str, float]) -> float:
    """The seconds of all phases; their parts are in them."""
    return math.fsum(spent for phase, spent in seconds.items() if ": " not in phase)


def _within(spans: Iterable[Span], limits: Iterable[Span]) -> list[Span]:
    """What of the spans lies within the limits, which do not overlap."""
    inside = []
    for start, end in spans:
        for first, last in limits:
            begin = max(start, first)
            stop = min(end, last)
            if begin < stop:
                inside.append((begin, stop))
    return inside


def _covered(spans: Iterable[tuple[float, float]]) -> float:
    """Seconds in at least one of the (start, end) spans."""
    total = 0.0
    reached = float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total
