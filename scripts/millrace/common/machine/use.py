"""How busy the machine is while a run trains: the GPU's own counters, and the CPU time of the trainer and its
workers.

A thread reads both about twice a second. GPU use is NVML's: the share of time in which at least one kernel
ran (of nvidia-smi, and what the seed measured); it says nothing of how full the kernels are.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

_TICK = os.sysconf("SC_CLK_TCK")


class Reading(NamedTuple):
    """At `at` (s, monotonic): CPU seconds so far of this process and of the ones it started, GPU use (0 to 1)
    and memory in use on the GPU by everybody; None where there is no such counter."""

    at: float
    trainer_cpu: float
    workers_cpu: float
    gpu: float | None
    gpu_memory_bytes: int | None


class Sampler:
    """Reads counters in a thread from `start` to `stop`. `device` is a CUDA device's number, or None for
    none."""

    def __init__(self, device: int | None = None, interval: float = 0.5) -> None:
        self.interval, self.readings = interval, list[Reading]()
        self._gpu = Nvml.open(device) if device is not None else None
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin; does nothing where it has begun."""
        if self._thread is None:
            self.read()
            self._thread = threading.Thread(target=self._run, name="use-sampler", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Take a last reading, and end the thread."""
        if self._thread is not None and not self._ended.is_set():
            self._ended.set()
            self._thread.join()
            self.read()

    def read(self) -> None:
        """Take a reading now."""
        trainer, workers = cpu_seconds()
        gpu, memory = self._gpu.read() if self._gpu is not None else (None, None)
        self.readings.append(Reading(time.monotonic(), trainer, workers, gpu, memory))

    def use(self, spans: list[tuple[float, float]], cores: float) -> dict[str, Any]:
        """Use during `spans`, the (begin, end) of steps in monotonic seconds; None for what was not measured.

        `cpu` and its parts are shares (0 to 1) of `cores`; `gpu` is the mean, `gpu_quantiles` its 10, 50 and
        90 %. Readings more than a fifth of whose interval lies outside (evaluations, checkpoints) do not
        count.
        """
        wall = trainer = workers = 0.0
        gpu, memory = [], []
        ends = np.array([span for pair in spans for span in pair], dtype=np.float64)
        inside = np.concatenate([[0.0], np.cumsum(np.diff(ends)[::2])]) if len(ends) else np.zeros(1)
        for before, after in zip(self.readings, self.readings[1:], strict=False):
            length = after.at - before.at
            covered = _time_inside(ends, inside, after.at) - _time_inside(ends, inside, before.at)
            if length <= 0 or covered < 0.8 * length:
                continue
            wall += length
            trainer += after.trainer_cpu - before.trainer_cpu
            # A worker that ended takes its time with it.
            workers += max(0.0, after.workers_cpu - before.workers_cpu)
            if after.gpu is not None:
                gpu.append(after.gpu)
                memory.append(after.gpu_memory_bytes)
        known = wall > 0 and cores > 0
        return {
            "seconds": wall,
            "cores": cores,
            "cpu": (trainer + workers) / wall / cores if known else None,
            "trainer_cpu": trainer / wall / cores if known else None,
            "workers_cpu": workers / wall / cores if known else None,
            "gpu": float(np.mean(gpu)) if gpu else None,
            "gpu_quantiles": np.percentile(gpu, (10, 50, 90)).tolist() if gpu else None,
            "gpu_memory_bytes": max(memory) if memory else None,
        }

    def _run(self) -> None:
        while not self._ended.wait(self.interval):
            self.read()


def _time_inside(ends: np.ndarray, inside: np.ndarray, at: float) -> float:
    """Seconds of spans before `at`; `ends` are begin, end, begin, end, ..."""
    place = int(np.searchsorted(ends, at, side="right"))
    whole = float(inside[place // 2])
    return whole + (at - float(ends[place - 1]) if place % 2 else 0.0)


def cpu_seconds() -> tuple[float, float]:
    """CPU seconds so far of this process, and of all that descend from it and live."""
    times = os.times()
    return times.user + times.system, sum(_seconds_of(pid) for pid in descendants(os.getpid()))


def descendants(pid: int) -> Iterator[int]:
    """The living processes that `pid` has started, and theirs (a forkserver's workers)."""
    for task in _names(Path(f"/proc/{pid}/task")):
        with contextlib.suppress(OSError):
            for child in Path(f"/proc/{pid}/task/{task}/children").read_text().split():
                yield int(child)
                yield from descendants(int(child))


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _seconds_of(pid: int) -> float:
    try:
        # The name in brackets may hold blanks and brackets itself.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICK
    except (OSError, ValueError, IndexError):
        return 0.0


def cores() -> float:
    """CPU cores this process may use: its affinity, and a container's quota (cgroup v2) where that is
    smaller."""
    count = float(len(os.sched_getaffinity(0)))
    with contextlib.suppress(OSError, ValueError):
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        count = min(count, int(quota) / int(period))
    return count


class Nvml:
    """One GPU through the driver's own library, which is there wherever there is a driver."""

    class _Use(ctypes.Structure):
        _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))

    class _Memory(ctypes.Structure):
        _fields_ = tuple((name, ctypes.c_ulonglong) for name in ("total", "free", "used"))

    def __init__(self, library: ctypes.CDLL, handle: ctypes.c_void_p) -> None:
        self._library, self._handle = library, handle

    @classmethod
    def open(cls, device: int) -> Nvml | None:
        """The counters of CUDA device `device` of this process; None where they cannot be had (no driver,
        MIG)."""
        import torch

        if not torch.cuda.is_available():
            return None
        uuid = str(getattr(torch.cuda.get_device_properties(device), "uuid", ""))
        name = uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"
        try:
            library, handle = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_void_p()
            if library.nvmlInit_v2():
                return None
            if library.nvmlDeviceGetHandleByUUID(name.encode(), ctypes.byref(handle)):
                return None
        except (OSError, AttributeError):
            return None
        found = cls(library, handle)
        return found if found.read()[0] is not None else None

    def read(self) -> tuple[float | None, int | None]:
        """(use from 0 to 1, bytes in use), None for what the driver does not say."""
        use, memory = self._Use(), self._Memory()
        gpu = (
            None
            if self._library.nvmlDeviceGetUtilizationRates(self._handle, ctypes.byref(use))
            else use.gpu / 100
        )
        unknown = self._library.nvmlDeviceGetMemoryInfo(self._handle, ctypes.byref(memory))
        return gpu, None if unknown else int(memory.used)
