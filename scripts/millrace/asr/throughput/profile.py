"""A few steps of a run under PyTorch's profiler: a trace to look at (chrome://tracing, Perfetto), and times
by phase.

    with StepProfiler(folder, steps=20, device=device) as profiler:
        loop.train(task, settings, folder, on_step=profiler.on_step)     # batches through
        profiler.watch(loader)

Forward hooks of all modules mark the phases, so that neither loop nor model knows of it. Profiled steps are
slower than others: read shares here, rates in the benchmark.
"""

from __future__ import annotations

import contextlib
import gzip
import shutil
import tempfile
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.autograd.profiler_util import FunctionEvent
from torch.nn.modules import module as modules
from torch.profiler import ProfilerActivity, profile, record_function

from millrace.asr.throughput.run import PROFILE
from millrace.common import atomic

TRACE = "trace.json.gz"
_MARK = "millrace: "
_STEP = f"{_MARK}step"
# In the order of a step. "mel" and "forward: ..." are parts of the forward pass, told apart by the module
# that runs.
DATA, FORWARD, BACKWARD, OPTIMISER, COMMUNICATION = (
    "data wait",
    "forward",
    "backward",
    "optimiser",
    "communication",
)
_OPERATORS = 15
_DEPTH = 3  # of single children (wrappers) that are gone through to find the model's parts


class StepProfiler:
    """A context around a run: profiles `steps` optimiser steps after `skip` others, then writes trace and
    table.

    With fewer steps than that, what there is. `watch` marks the waits for batches. On rank 0 only.
    """

    def __init__(
        self,
        folder: str | Path,
        steps: int = 20,
        device: torch.device | str = "cpu",
        *,
        skip: int = 3,
        rank: int = 0,
    ) -> None:
        self.folder, self.steps, self.skip, self.rank = Path(folder), max(steps, 1), max(skip, 0), rank
        self.device = torch.device(device)
        self._profile: profile | None = None
        self._step_mark: record_function | None = None
        self._hooks: list[Any] = []
        self._parts: dict[int, str] = {}
        self._open: list[tuple[int, record_function]] = []
        self._seen = self._profiled = 0
        self._done = rank != 0

    def __enter__(self) -> StepProfiler:
        if not self._done and not self.skip:
            self._start()
        return self

    def __exit__(self, kind: type | None, *error: object) -> None:
        if self._profile is not None:
            self._finish(write=kind is None and self._profiled > 0)

    def watch(self, batches: Iterable[Any]) -> Iterator[Any]:
        """The same batches; the waits for them are marked."""
        stream = iter(batches)
        try:
            while True:
                with self._marked(DATA):
                    batch = next(stream, None)
                if batch is None:
                    return
                yield batch
        finally:
            if hasattr(stream, "close"):
                stream.close()

    def on_step(self, step: int) -> None:
        """End an optimiser step."""
        self._seen += 1
        if self._profile is not None:
            self._profiled += 1
            self._step_mark.__exit__(None, None, None)
            self._step_mark = None
            if self._profiled == self.steps:
                self._finish(write=True)
            else:
                self._begin_step()
        elif not self._done and self._seen >= self.skip:
            self._start()

    def _start(self) -> None:
        activities = [ProfilerActivity.CPU]
        if self.device.type == "cuda":
            activities.append(ProfilerActivity.CUDA)
        self._hooks = [
            modules.register_module_forward_pre_hook(self._before),
            modules.register_module_forward_hook(self._after, always_call=True),
        ]
        self._profile = profile(activities=activities, acc_events=True)
        self._profile.__enter__()
        self._begin_step()

    def _begin_step(self) -> None:
        self._step_mark = record_function(_STEP)
        self._step_mark.__enter__()

    def _finish(self, write: bool) -> None:
        for hook in self._hooks:
            hook.remove()
        running, self._profile, self._done = self._profile, None, True
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        running.__exit__(None, None, None)
        if write:
            self.folder.mkdir(parents=True, exist_ok=True)
            export(running, self.folder / TRACE)
            atomic.write_json(
                self.folder / PROFILE, table(list(running.events()), self._profiled, self.device.type)
            )

    def _marked(self, name: str) -> contextlib.AbstractContextManager:
        return record_function(_MARK + name) if self._profile is not None else contextlib.nullcontext()

    def _before(self, module: torch.nn.Module, _: Any) -> None:
        name = type(module).__name__
        if name == "TrainingStep":
            self._parts = {id(part): f"{FORWARD}: {label}" for label, part in parts_of(module)}
            label = FORWARD
        elif id(module) in self._parts:
            label = self._parts[id(module)]
        else:
            return
        mark = record_function(_MARK + label)
        mark.__enter__()
        self._open.append((id(module), mark))

    def _after(self, module: torch.nn.Module, *_: Any) -> None:
        if self._open and self._open[-1][0] == id(module):
            self._open.pop()[1].__exit__(None, None, None)


def parts_of(step: torch.nn.Module) -> list[tuple[str, torch.nn.Module]]:
    """The parts of a model that are worth a line: its children by name, wrappers gone through, lists of
    layers taken apart (layers of a list share a name)."""
    found: list[tuple[str, torch.nn.Module]] = []
    total = _parameters(step)

    def visit(module: torch.nn.Module, depth: int) -> None:
        children = list(module.named_children())
        heavy = sum(_parameters(child) > 0 for _, child in children)
        for name, child in children:
            if isinstance(child, torch.nn.ModuleList):
                found.extend((name, layer) for layer in child)
            elif depth and heavy <= 2 and _parameters(child) > 0.9 * total and len(list(child.children())):
                visit(child, depth - 1)
            else:
                found.append((name, child))

    visit(step, _DEPTH)
    return found


def _parameters(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def export(running: profile, path: Path) -> None:
    """Write the trace, gzipped, atomically."""
    with tempfile.TemporaryDirectory() as scratch:
        plain = Path(scratch) / "trace.json"
        running.export_chrome_trace(str(plain))
        with (
            atomic.replacing(path) as partial,
            open(plain, "rb") as source,
            open(partial, "wb") as raw,
            gzip.GzipFile("trace.json", "wb", 6, raw, mtime=0) as sink,
        ):
            shutil.copyfileobj(source, sink)


def table(events: list[FunctionEvent], steps: int, device_type: str) -> dict[str, Any]:
    """Times of the profiled steps by phase, and the operators that take most.

    `phases`: host seconds in which the phase's outermost events ran, and device seconds of the kernels they
    started. "idle" is host time in no phase; the device's idle time is `seconds - device_busy_seconds`.
    """
    whole = [event.time_range for event in events if event.name == _STEP]
    seconds = sum(span.end - span.start for span in whole) / 1e6
    spans: dict[str, list[tuple[float, float]]] = defaultdict(list)
    device: Counter[str] = Counter()
    forwards = _union([_span(event) for event in events if event.name == _MARK + FORWARD])
    for event in events:
        # A GPU's own copies of the marks repeat those of the host.
        if event.device_type != torch.autograd.DeviceType.CPU or (phase := phase_of(event.name)) is None:
            continue
        # Checkpointed parts run again within the backward pass.
        if phase.startswith(f"{FORWARD}: ") and not _inside(forwards, _span(event)):
            continue
        spans[phase].append(_span(event))
        device[phase] += event.device_time_total / 1e6
    kernels = [
        _span(event)
        for event in events
        if event.device_type == torch.autograd.DeviceType.CUDA and not event.name.startswith(_MARK)
    ]
    host = {phase: sum(end - start for start, end in _union(found)) / 1e6 for phase, found in spans.items()}
    outer = [span for phase, found in spans.items() if ": " not in phase for span in found]
    host["idle"] = max(0.0, seconds - sum(end - start for start, end in _union(outer)) / 1e6)
    order = {DATA: 0, FORWARD: 1, BACKWARD: 3, OPTIMISER: 4, COMMUNICATION: 5, "idle": 6}
    names = sorted(host, key=lambda name: (order.get(name, 2), name))
    busy = sum(end - start for start, end in _union(kernels)) / 1e6
    return {
        "steps": steps,
        "device": device_type,
        "seconds": seconds,
        "device_busy_seconds": busy if device_type == "cuda" else None,
        "phases": [
            {"phase": name, "host_seconds": host[name], "device_seconds": device[name]} for name in names
        ],
        "operators": _operators(events),
        "trace": TRACE,
    }


def phase_of(name: str) -> str | None:
    """The phase that an event is of; None for most of them, which lie within others."""
    if name.startswith(_MARK):
        return None if name == _STEP else name.removeprefix(_MARK)
    if name.startswith("autograd::engine::evaluate_function"):
        return BACKWARD
    if name.startswith("Optimizer.step#"):
        return OPTIMISER
    if name.startswith(("nccl:", "gloo:", "c10d::")):
        return COMMUNICATION
    return None


def _operators(events: list[FunctionEvent]) -> list[dict[str, Any]]:
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0])
    for event in events:
        if event.device_type != torch.autograd.DeviceType.CPU or not event.name.startswith("aten::"):
            continue
        total = sums[event.name]
        total[0] += event.self_cpu_time_total / 1e6
        total[1] += event.self_device_time_total / 1e6
        total[2] += 1
    ranked = sorted(sums.items(), key=lambda pair: (-pair[1][1], -pair[1][0], pair[0]))[:_OPERATORS]
    names = ("host_seconds", "device_seconds", "calls")
    return [{"operator": name, **dict(zip(names, total, strict=True))} for name, total in ranked]


def _span(event: FunctionEvent) -> tuple[float, float]:
    return event.time_range.start, event.time_range.end


def _union(spans: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    merged: list[list[float]] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([start, end])
    return [(start, end) for start, end in merged]


def _inside(spans: list[tuple[float, float]], span: tuple[float, float]) -> bool:
    place = bisect_right(spans, (span[0], float("inf"))) - 1
    return place >= 0 and span[1] <= spans[place][1]
