"""How busy the GPU is while a run trains, and the CPU cores of this process.

GPU use is NVML's: the share of time in which at least one kernel ran (as nvidia-smi shows it); it
says nothing of how full the kernels are.
"""

from __future__ import annotations

import contextlib
import statistics
import threading
from pathlib import Path

import psutil
import torch

_LOOK_SECONDS = 0.5


class Sampler:
    """Reads the use of CUDA's first GPU in a thread from `start` to `stop`."""

    def __init__(self) -> None:
        self.readings = list[float]()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="use-sampler", daemon=True)

    def start(self) -> None:
        """Begin; does nothing if it has begun."""
        if self._thread.ident is None:
            self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        if self._thread.is_alive():
            self._ended.set()
            self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(_LOOK_SECONDS):
            if not self.read():
                return

    def read(self) -> bool:
        """Take a reading now; whether there are counters to read."""
        try:
            self.readings.append(torch.cuda.utilization(0) / 100)
        except Exception:  # no driver, no nvidia-ml-py, MIG: measuring must never end a run
            return False
        return True

    @property
    def mean(self) -> float | None:
        """The mean of the readings, 0 to 1; None if there is none."""
        if self.readings:
            return statistics.fmean(self.readings)
        return None


def cores() -> float:
    """CPU cores for this process: its affinity, and a container's quota (cgroup v2) if that is
    smaller."""
    count = float(len(psutil.Process().cpu_affinity()))
    with contextlib.suppress(OSError, ValueError):
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        count = min(count, int(quota) / int(period))
    return count
