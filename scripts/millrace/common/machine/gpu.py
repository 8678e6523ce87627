"""The counters of a rank's GPU. CUDA numbers the GPUs that a process may see, NVML those of the
machine."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any


class GpuCounters:
    """NVML's counters of the GPU that CUDA shows this process as number `device`, a rank's local
    rank.

    `read` raises whatever NVML does where there is no driver or no such GPU.
    """

    def __init__(self, device: int) -> None:
        self.device = device
        self._handle: Any = None

    def read(self) -> tuple[float, int]:
        """(Use, 0 to 1; bytes in use by everybody), now."""
        # No dependency of Millrace's, but of torch's own counters.
        import pynvml

        if self._handle is None:
            pynvml.nvmlInit()
            numbers = range(pynvml.nvmlDeviceGetCount())
            handles = [pynvml.nvmlDeviceGetHandleByIndex(number) for number in numbers]
            uuids = [pynvml.nvmlDeviceGetUUID(handle) for handle in handles]
            self._handle = handles[
                nvml_number(self.device, os.environ.get("CUDA_VISIBLE_DEVICES"), uuids)
            ]
        use = pynvml.nvmlDeviceGetUtilizationRates(self._handle).gpu / 100
        return use, int(pynvml.nvmlDeviceGetMemoryInfo(self._handle).used)


def nvml_number(device: int, visible: str | None, uuids: Sequence[str]) -> int:
    """NVML's number of the GPU that is CUDA's number `device` where CUDA_VISIBLE_DEVICES is
    `visible`.

    `uuids` are those of all GPUs, by NVML's number. As in CUDA a name may be the beginning of a
    UUID, and whatever follows the first entry that names no GPU is not seen. Raises LookupError for
    a device that CUDA would not see, and for a part of a GPU (MIG), of which NVML counts no use.
    """
    if visible is None:
        seen = list(range(len(uuids)))
    else:
        seen = []
        for entry in visible.split(","):
            number = _number_of(entry.strip(), uuids)
            if number is None:
                break
            seen.append(number)
    if device >= len(seen):
        raise LookupError(f"CUDA_VISIBLE_DEVICES={visible} has no GPU number {device}")
    return seen[device]


def _number_of(entry: str, uuids: Sequence[str]) -> int | None:
    """The number of the one GPU that an entry of CUDA_VISIBLE_DEVICES means; None if it means
    none."""
    if entry.isdecimal():
        return int(entry) if int(entry) < len(uuids) else None
    if not entry.startswith("GPU-"):
        return None
    named = [number for number, uuid in enumerate(uuids) if uuid.startswith(entry)]
    return named[0] if len(named) == 1 else None
