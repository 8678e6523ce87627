"""How busy the machine is while a run trains: the GPU's own counters, and the CPU time of the trainer and its
workers.

A thread reads both about twice a second. GPU use is NVML's: the share of time in which at least one kernel
ran (as nvidia-smi shows it); it says nothing of how full the kernels are.
"""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path
from typing import NamedTuple, TypedDict

import numpy as np
import psutil

_SEARCH_EVERY = 20  # readings: to find its workers psutil goes through all processes of the machine


class Reading(NamedTuple):
    """At `at` (s, perf_counter): CPU seconds (user and system) so far of this process and of the living ones
    that it started, GPU use (0 to 1) and memory in use on the GPU by everybody; None if unknown."""

    at: float
    trainer_cpu: float
    workers_cpu: float
    gpu: float | None
    gpu_memory_bytes: int | None


class Use(TypedDict):
    """Use of the machine during `seconds`; None: not measured. `cpu` and its parts are shares (0 to 1) of
    `cores`; `gpu` is the mean, `gpu_quantiles` are its 10, 50 and 90 %."""

    seconds: float
    cores: float
    cpu: float | None
    trainer_cpu: float | None
    workers_cpu: float | None
    gpu: float | None
    gpu_quantiles: list[float] | None
    gpu_memory_bytes: int | None


class Sampler:
    """Reads counters in a thread from `start` to `stop`. `device` is a CUDA device's number, or None."""

    def __init__(self, device: int | None = None, interval: float = 0.5) -> None:
        self.device, self.interval, self.readings = device, interval, list[Reading]()
        self._workers: list[psutil.Process] = []
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin; does nothing if it has begun."""
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
        gpu = gpu_counters(self.device) if self.device is not None else (None, None)
        if gpu[0] is None:
            self.device = None  # no counters now, none later
        trainer, workers = psutil.Process(), 0.0
        if len(self.readings) % _SEARCH_EVERY == 0:
            self._workers = trainer.children(recursive=True)
        for worker in self._workers:
            with contextlib.suppress(psutil.Error):  # it has ended
                workers += sum(worker.cpu_times()[:2])
        self.readings.append(Reading(time.perf_counter(), sum(trainer.cpu_times()[:2]), workers, *gpu))

    def use(self, spans: list[tuple[float, float]], cores: float) -> Use:
        """Use during `spans`, the (begin, end) of steps in perf_counter's seconds.

        Readings more than a fifth of whose interval lies outside (evaluations, checkpoints) do not count.
        """
        # Seconds within spans before each reading: interpolated between the spans' ends.
        ends = np.array([0.0, *(end for span in spans for end in span)])
        lengths = np.diff(ends) * (np.arange(len(ends) - 1) % 2)
        inside = np.interp([one.at for one in self.readings], ends, np.cumsum([0.0, *lengths]))
        wall = trainer = workers = 0.0
        gpu: list[Reading] = []
        for before, after, covered in zip(self.readings, self.readings[1:], np.diff(inside), strict=False):
            length = after.at - before.at
            if length <= 0 or covered < 0.8 * length:
                continue
            wall += length
            trainer += after.trainer_cpu - before.trainer_cpu
            # A worker that ended takes its time with it.
            workers += max(0.0, after.workers_cpu - before.workers_cpu)
            gpu += [after] if after.gpu is not None else []
        shares = [part / wall / cores if wall else None for part in (trainer + workers, trainer, workers)]
        return {
            "seconds": wall,
            "cores": cores,
            "cpu": shares[0],
            "trainer_cpu": shares[1],
            "workers_cpu": shares[2],
            "gpu": float(np.mean([one.gpu for one in gpu])) if gpu else None,
            "gpu_quantiles": np.percentile([one.gpu for one in gpu], (10, 50, 90)).tolist() if gpu else None,
            "gpu_memory_bytes": max(one.gpu_memory_bytes for one in gpu) if gpu else None,
        }

    def _run(self) -> None:
        while not self._ended.wait(self.interval):
            self.read()


def gpu_counters(device: int) -> tuple[float | None, int | None]:
    """Use (0 to 1) and bytes in use of a CUDA device of this process; None if unknown (no driver, no
    nvidia-ml-py, MIG)."""
    import torch

    with contextlib.suppress(Exception):  # measuring must never end a run
        return torch.cuda.utilization(device) / 100, int(torch.cuda.device_memory_used(device))
    return None, None


def cores() -> float:
    """CPU cores for this process: its affinity, and a container's quota (cgroup v2) if that is smaller."""
    count = float(len(psutil.Process().cpu_affinity()))
    with contextlib.suppress(OSError, ValueError):
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        count = min(count, int(quota) / int(period))
    return count
