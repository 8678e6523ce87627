"""A few steps of a run under PyTorch's profiler: a trace (for Perfetto), and times by phase.

    with StepProfiler(folder, 20, device) as profiler:
        loop.train(task, settings, folder, on_step=profiler.on_step)

The loop marks its steps and phases; forward hooks of all modules mark the parts of the model. Profiled steps
are slower than others: read shares here, rates in the benchmark.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch.autograd import DeviceType
from torch.autograd.profiler_util import EventList, FunctionEvent
from torch.nn.modules import module as modules
from torch.profiler import ProfilerActivity, profile, record_function, schedule

from millrace.common import atomic
from millrace.common.throughput.run import PROFILE
from millrace.common.training.meters import MARK
from millrace.common.training.task import TrainingStep

TRACE = "trace.json.gz"
# The phases in the order of a step; the loop marks most of them. 2 are the parts of the forward pass.
_ORDER = {"data wait": 0, "forward": 1, "backward": 3, "optimiser": 4, "communication": 5, "idle": 6}
_OPERATORS = 15
_DEPTH = 3  # of single children (wrappers) that are gone through to find the model's parts


class StepProfiler:
    """A context around a run: profiles `steps` steps after `skip` others (fewer if the run ends before).

    Writes trace and table unless the run fails. On rank 0 only.
    """

    def __init__(self, folder: Path, steps: int, device: str, *, skip: int = 3, rank: int = 0) -> None:
        self.folder, self.device = folder, torch.device(device)
        activities = [ProfilerActivity.CPU]
        activities += [ProfilerActivity.CUDA] if self.device.type == "cuda" else []
        chosen = schedule(skip_first=skip - 1, wait=0, warmup=1, active=max(steps, 1), repeat=1)
        options = {"schedule": chosen, "on_trace_ready": self._write, "acc_events": True}
        self._profile = None if rank else profile(activities=activities, **options)
        self._hooks = contextlib.ExitStack()
        self._failed = False
        self._parts: dict[int, str] = {}  # label of a part by its id(); empty outside of forward
        self._open: list[tuple[int, record_function]] = []

    def __enter__(self) -> StepProfiler:
        if self._profile is not None:
            self._hooks.callback(modules.register_module_forward_pre_hook(self._before).remove)
            self._hooks.callback(modules.register_module_forward_hook(self._after, always_call=True).remove)
            self._profile.start()
        return self

    def __exit__(self, kind: type | None, *error: object) -> None:
        self._hooks.close()
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
        self._hooks.close()
        phases = table(running.events(), running.key_averages(), self.device.type) if not self._failed else {}
        if not phases.get("steps"):
            return
        with tempfile.TemporaryDirectory() as scratch, atomic.replacing(self.folder / TRACE) as partial:
            running.export_chrome_trace(f"{scratch}/{TRACE}")
            shutil.copyfile(f"{scratch}/{TRACE}", partial)
        atomic.write_json(self.folder / PROFILE, phases)

    def _before(self, module: torch.nn.Module, _: Any) -> None:
        if isinstance(module, TrainingStep):
            # A model that marks its parts itself (see meters.part) calls some of them past their hooks.
            own = getattr(module.model, "marks_parts", False)
            self._parts = {} if own else {id(part): label for label, part in parts_of(module)}
        elif label := self._parts.get(id(module)):
            mark = record_function(f"{MARK}forward: {label}")
            mark.__enter__()
            self._open.append((id(module), mark))

    def _after(self, module: torch.nn.Module, *_: Any) -> None:
        if self._open and self._open[-1][0] == id(module):
            self._open.pop()[1].__exit__(None, None, None)
        elif isinstance(module, TrainingStep):
            self._parts = {}  # checkpointed parts run again within the backward pass: not part of forward


def parts_of(step: torch.nn.Module) -> list[tuple[str, torch.nn.Module]]:
    """The parts of a model that are worth a line, by name: its children, or those of what wraps them.

    Lists of layers are taken apart; the layers of a list share a name.
    """
    parts: list[tuple[str, torch.nn.Module]] = []
    total = _parameters(step)

    def visit(module: torch.nn.Module, depth: int) -> None:
        children = list(module.named_children())
        heavy = sum(_parameters(child) > 0 for _, child in children)
        for name, child in children:
            if isinstance(child, torch.nn.ModuleList):
                parts.extend((name, layer) for layer in child)
            elif depth and heavy <= 2 and _parameters(child) > 0.9 * total and len(list(child.children())):
                visit(child, depth - 1)
            else:
                parts.append((name, child))

    visit(step, _DEPTH)
    return parts


def _parameters(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def table(events: Iterable[FunctionEvent], averages: EventList, device_type: str) -> dict[str, Any]:
    """Times of the profiled steps by phase, and the operators that take most.

    `phases`: host seconds within the phase, and device seconds of the kernels it started. "idle" is host time
    of the steps in no phase; the device's idle time is `seconds - device_busy_seconds`.
    """
    spans: dict[str, list[tuple[float, float]]] = defaultdict(list)
    device: Counter[str] = Counter()
    kernels: list[tuple[float, float]] = []
    for event in events:
        span, name = (event.time_range.start / 1e6, event.time_range.end / 1e6), event.name
        if event.device_type != DeviceType.CPU:
            if not event.is_user_annotation:  # the GPU's own copies of the marks
                kernels.append(span)
        elif name.startswith(MARK) or name.startswith(("nccl:", "gloo:", "c10d::")):
            phase = name.removeprefix(MARK) if name.startswith(MARK) else "communication"
            spans[phase].append(span)
            device[phase] += event.device_time_total / 1e6
        elif name.startswith("autograd::engine::evaluate_function") and event.cpu_parent is None:
            # On a GPU the backward pass runs in a thread of its own, outside of the mark.
            device["backward"] += event.device_time_total / 1e6
    steps = spans.pop("step", [])
    seconds = _covered(steps)
    host = {phase: _covered(marked) for phase, marked in spans.items()}
    outer = [span for phase, marked in spans.items() if ": " not in phase for span in marked]
    host["idle"] = max(0.0, seconds - _covered(outer))
    operators = [op for op in averages if op.device_type == DeviceType.CPU and op.key.startswith("aten::")]
    operators.sort(key=lambda op: (-op.self_device_time_total, -op.self_cpu_time_total, op.key))
    phases = sorted(host, key=lambda phase: (_ORDER.get(phase, 2), phase))
    return {
        "steps": len(steps),
        "device": device_type,
        "seconds": seconds,
        "device_busy_seconds": _covered(kernels) if device_type == "cuda" else None,
        "phases": [
            {"phase": phase, "host_seconds": host[phase], "device_seconds": device[phase]} for phase in phases
        ],
        "operators": [
            {
                "operator": op.key,
                "host_seconds": op.self_cpu_time_total / 1e6,
                "device_seconds": op.self_device_time_total / 1e6,
                "calls": op.count,
            }
            for op in operators[:_OPERATORS]
        ],
        "trace": TRACE,
    }


def _covered(spans: Iterable[tuple[float, float]]) -> float:
    """Seconds in at least one of the (start, end) spans."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total
