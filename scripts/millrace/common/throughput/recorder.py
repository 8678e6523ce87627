"""What each step of a run took: time, batch, memory; and how busy the GPU was.

    recorder = StepRecorder(folder, device, {"loader": "bucketed"}, measure)
    with recorder:  # writes throughput.json at the end, also of a run that fails
        loop.train(task, settings, folder, on_step=recorder.on_step)
    # and where the task makes its batches:  for batch in recorder.watch(loader): ...

`measure(line, batch)` adds what the lane counts of a batch (samples, seconds of audio) to the
step's line. Rank 0 alone records: one line a step in steps.jsonl, and throughput.json.
"""

from __future__ import annotations

import contextlib
import platform
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson
import torch

from millrace.common import atomic
from millrace.common.machine import memory
from millrace.common.machine.use import Sampler, cores
from millrace.common.processes import causes
from millrace.common.throughput.run import FACTS, STEPS, StepLine
from millrace.common.training import run_log
from millrace.common.training.meters import mark, seconds_between

Measure = Callable[[StepLine, Any], None]


class StepRecorder:
    """A context around a run; `watch` its batches and call `on_step` after every optimiser step.

    A step's time is from when its first batch is asked for to its end, without evaluations and
    checkpoints. On a GPU it is the device's, and memory is what PyTorch's allocator held at most
    during the step; on the CPU it is the process's largest resident set. `facts` are kept in
    throughput.json for the report.
    """

    def __init__(
        self, folder: Path, device: str, facts: Mapping[str, Any], measure: Measure
    ) -> None:
        self.folder = folder
        self._measure = measure
        self.on_gpu = device == "cuda"
        # Rank 0's. Named by its number, as a thread of its own has no current device.
        self.device = torch.device(device, 0 if self.on_gpu else None)
        # What JSON cannot hold fails now and not after the run.
        self.facts = orjson.loads(orjson.dumps(dict(facts), default=str))
        self.sampler = Sampler()
        self._line: StepLine | None = None  # of the step that runs
        self._begin: Any = None
        self._pending: deque[tuple[StepLine, Any, Any]] = deque()
        self._handle: Any = None

    def __enter__(self) -> StepRecorder:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: object) -> None:
        self.sampler.stop()
        if self._handle is not None:
            self._write(wait=error is None)
            self._handle.close()
        facts = {
            **self.facts,
            "failed": None if error is None else _failure(error),
            "machine": machine(self.device),
            "gpu_use": self.sampler.mean,
        }
        atomic.write_json(self.folder / FACTS, facts)

    def watch(self, batches: Iterable[Any]) -> Iterator[Any]:
        """The same batches, noted."""
        line = self._begin_step()
        for batch in batches:
            line["batches"] += 1
            self._measure(line, batch)
            yield batch
            line = self._begin_step()
        if not line["batches"]:
            self._line = None

    def _begin_step(self) -> StepLine:
        """The line of the step that runs, or that begins here."""
        if self._line is not None:
            return self._line
        if self.on_gpu:
            torch.cuda.reset_peak_memory_stats(self.device)
        else:
            memory.forget_highest_resident()
        self._line = {"step": 0, "batches": 0, "samples": 0}
        self._begin = mark(self.device.type)
        return self._line

    def on_step(self, step: int) -> None:
        if self._line is None:
            return
        line = self._line
        self._line = None
        line["step"] = step
        if self.on_gpu:
            line["peak_memory_bytes"] = torch.cuda.max_memory_allocated(self.device)
            self.sampler.start()  # the first step was a warm-up
        else:
            line["peak_memory_bytes"] = memory.highest_resident()
        self._pending.append((line, self._begin, mark(self.device.type)))
        if self._handle is None:
            self.folder.mkdir(parents=True, exist_ok=True)
            run_log.truncate(self.folder / STEPS, step - 1)  # a resumed run writes them again
            self._handle = open(self.folder / STEPS, "ab")  # noqa: SIM115 - closed with the run
        self._write(wait=False)

    def _write(self, wait: bool) -> None:
        """Write the lines of the steps that the device has done; `wait` for all of them."""
        if wait and self.on_gpu and self._pending:
            self._pending[-1][2].synchronize()
        while self._pending and (not self.on_gpu or self._pending[0][2].query()):
            line, begin, end = self._pending.popleft()
            line["seconds"] = seconds_between(begin, end)
            self._handle.write(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))
        self._handle.flush()


def machine(device: torch.device) -> dict[str, Any]:
    """What a measurement was made on."""
    facts: dict[str, Any] = {
        "cores": cores(),
        "cpu": platform.machine(),
        "torch": str(torch.__version__),
        "device": "cpu",
    }
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        facts["cpu"] = next(
            ln.partition(":")[2].strip() for ln in lines if ln.startswith("model name")
        )
    # Without a GPU the run has failed, and says so.
    if device.type == "cuda" and torch.cuda.is_available():
        facts["device"] = torch.cuda.get_device_name(device)
    return facts


def _failure(error: BaseException) -> str:
    if any(memory.is_out_of_memory(cause) for cause in causes(error)):
        return "out of memory"
    if isinstance(error, SystemExit | KeyboardInterrupt):
        return "stopped"
    first_line = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {first_line}" if first_line else type(error).__name__
