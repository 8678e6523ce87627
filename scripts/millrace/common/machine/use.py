"""How busy the machine is while a run trains: the GPU's counters, and the CPU time of trainer and
workers.

A thread reads both about twice a second. GPU use is NVML's: the share of time in which at least one
kernel ran (as nvidia-smi shows it); it says nothing of how full the kernels are.
"""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import psutil
import torch

_SEARCH_EVERY = 20  # readings: to find its workers psutil goes through all processes of the machine


class Reading(NamedTuple):
    """The counters at `at` (s, perf_counter)."""

    at: float
    trainer_cpu: float  # seconds, user and system, of this process so far
    workers_cpu: float  # of the living ones that it started
    gpu: float | None  # use, 0 to 1; None: unknown


class Sampler:
    """Reads counters in a thread from `start` to `stop`; `gpu` is CUDA's number of the GPU, if the
    run has one."""

    def __init__(self, gpu: int | None = None, interval: float = 0.5) -> None:
        self.gpu = gpu
        self.interval = interval
        self.readings = list[Reading]()
        self._workers: list[psutil.Process] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="use-sampler", daemon=True)

    def start(self) -> None:
        """Begin; does nothing if it has begun."""
        if self._thread.ident is None:
            self.read()
            self._thread.start()

    def stop(self) -> None:
        """End the thread, and take a last reading."""
        if self._thread.is_alive():
            self._ended.set()
            self._thread.join()
            self.read()

    def _run(self) -> None:
        while not self._ended.wait(self.interval):
            self.read()

    def read(self) -> None:
        """Take a reading now."""
        use = None
        if self.gpu is not None:
            try:
                use = torch.cuda.utilization(self.gpu) / 100
            except Exception:  # no driver, no nvidia-ml-py, MIG: measuring must never end a run
                self.gpu = None  # no counters now, none later
        trainer = psutil.Process()
        workers = 0.0
        if len(self.readings) % _SEARCH_EVERY == 0:
            self._workers = trainer.children(recursive=True)
        for worker in self._workers:
            with contextlib.suppress(psutil.Error):  # it has ended
                workers += sum(worker.cpu_times()[:2])
        seconds = sum(trainer.cpu_times()[:2])
        self.readings.append(Reading(time.perf_counter(), seconds, workers, use))

    def use(self, spans: list[tuple[float, float]], cores: float) -> dict[str, float | None]:
        """Use during `spans`, the (begin, end) of steps in perf_counter's seconds; None: not
        measured.

        `cpu`, and `workers_cpu` of it, are shares (0 to 1) of `cores`; `gpu` is the mean. Readings
        more than a fifth of whose interval lies outside (evaluations) do not count.
        """
        # Seconds within spans before each reading: interpolated between the spans' ends.
        ends = np.array([0.0, *(end for span in spans for end in span)])
        lengths = np.diff(ends) * (np.arange(len(ends) - 1) % 2)
        readings = [reading[:3] for reading in self.readings]
        clocks = np.array(readings).reshape(-1, 3)
        sums = np.cumsum([0.0, *lengths])
        covered = np.diff(np.interp(clocks[:, 0], ends, sums))

        seconds, trainer, workers = np.diff(clocks, axis=0).T
        counts = (seconds > 0) & (covered >= 0.8 * seconds)
        available = float(seconds[counts].sum()) * cores
        after = [self.readings[1 + place] for place in np.flatnonzero(counts)]
        gpu = [reading.gpu for reading in after if reading.gpu is not None]
        # A worker that ended takes its time with it.
        of_workers = float(workers[counts].clip(0).sum())
        of_trainer = float(trainer[counts].sum())
        return {
            "cpu": (of_trainer + of_workers) / available if available else None,
            "workers_cpu": of_workers / available if available else None,
            "gpu": float(np.mean(gpu)) if gpu else None,
        }


def cores() -> float:
    """CPU cores for this process: its affinity, and a container's quota (cgroup v2) if that is
    smaller."""
    count = float(len(psutil.Process().cpu_affinity()))
    with contextlib.suppress(OSError, ValueError):
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        count = min(count, int(quota) / int(period))
    return count
