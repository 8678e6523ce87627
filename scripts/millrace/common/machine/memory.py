"""How much memory a training step takes at its peak, on a GPU and on the host, a limit that ends
it, and which errors mean that memory has run out.

GB are 2**30 bytes everywhere, as torch and nvidia-smi count. A meter measures steps from `begin`
on, when all else is set up; `peak` is in bytes, `facts` are in GB and ready for JSON.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import resource
from pathlib import Path
from typing import Any

GB = 1 << 30
# What a trial on the host may take above its limit: enough to measure, too little to harm the
# machine.
_HARD = 1.5
_HARD_ROOM = GB // 4
_SHARE_OF_FREE = 0.8
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8
_OUT_OF_MEMORY = (
    "out of memory",
    "can't allocate memory",
    "Cannot allocate memory",
    "Unable to allocate",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "cudaErrorMemoryAllocation",
    "std::bad_alloc",
)


class HostMeter:
    """Resident memory of this process; its peak is the kernel's (VmHWM), which misses nothing."""

    def __init__(self, limit_gb: float) -> None:
        self.limit = int(limit_gb * GB)
        self._before = 0
        self._fixed = resident()

    def begin(self) -> None:
        return_freed_memory()
        self._before = highest_resident()
        forget_highest_resident()
        self._fixed = resident()
        # Beyond this (or most of what the machine has free) allocations fail as errors of Python or
        # torch, and the kernel kills no process.
        room = max(int(self.limit * _HARD) - self._fixed, 0) + _HARD_ROOM
        room = min(room, int(kernel_bytes("MemAvailable", "meminfo") * _SHARE_OF_FREE))
        if data := kernel_bytes("VmData"):
            with contextlib.suppress(ValueError, OSError):
                hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
                resource.setrlimit(resource.RLIMIT_DATA, (data + room, hard))

    def peak(self) -> int:
        return max(self._before, highest_resident())

    def facts(self) -> dict[str, Any]:
        sizes = {
            "peak_gb": self.peak(),
            "step_peak_gb": highest_resident(),
            "fixed_gb": self._fixed,
        }
        return {name: size / GB for name, size in sizes.items()}


class CudaMeter:
    """The peak that torch's allocator has reserved, plus what the device holds beside it (context,
    NCCL).

    Reserved, not allocated, is what the device must have. The allocator may not reserve more than
    the limit: as on a device of that size it then gives cached blocks back and tries again
    (`retries`), and may fail.
    """

    def __init__(self, limit_gb: float) -> None:
        import torch

        self._cuda = torch.cuda
        self._cuda.init()
        self.limit = int(limit_gb * GB)
        self._fixed = 0

    def begin(self) -> None:
        self._cuda.synchronize()
        self._cuda.empty_cache()
        share = (self.limit - self._beside()) / self._cuda.mem_get_info()[1]
        self._cuda.set_per_process_memory_fraction(min(max(share, 0.001), 1.0))
        self._cuda.reset_peak_memory_stats()
        self._fixed = self._cuda.memory_reserved() + self._beside()

    def peak(self) -> int:
        return self._cuda.max_memory_reserved() + self._beside()

    def facts(self) -> dict[str, Any]:
        self._cuda.synchronize()
        sizes = {
            "peak_gb": self.peak(),
            "step_peak_gb": self.peak(),
            "fixed_gb": self._fixed,
            "allocated_gb": self._cuda.max_memory_allocated(),
            "beside_gb": self._beside(),
        }
        facts: dict[str, Any] = {name: size / GB for name, size in sizes.items()}
        facts["retries"] = self._cuda.memory_stats().get("num_alloc_retries", 0)
        return facts

    def _beside(self) -> int:
        free, total = self._cuda.mem_get_info()
        return max(0, total - free - self._cuda.memory_reserved())


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory has run out, on the host or a device (allocator, cuBLAS,
    NCCL)."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, (RuntimeError, OSError)) and says_out_of_memory(str(error))


def says_out_of_memory(text: str) -> bool:
    """Whether a message or a log tells of an allocation that failed."""
    return any(sign in text for sign in _OUT_OF_MEMORY)


def kernel_bytes(name: str, file: str = "self/status") -> int:
    """Bytes of a field of this file below /proc; 0 if the kernel has none."""
    with contextlib.suppress(OSError):
        for line in Path("/proc", file).read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
    return 0


def resident() -> int:
    """Resident bytes of this process now."""
    return kernel_bytes("VmRSS")


def highest_resident() -> int:
    """Most resident bytes of this process since it began, or since `forget_highest_resident`."""
    return kernel_bytes("VmHWM") or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def forget_highest_resident() -> None:
    """Begin a new peak of resident memory, proc(5); does nothing if that is not allowed."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def host_memory() -> int:
    """Bytes of memory of this machine or of its container (cgroup v2 or v1), the smaller."""
    sizes = [kernel_bytes("MemTotal", "meminfo")]
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):
            sizes.append(int(Path("/sys/fs/cgroup", name).read_text()))
    return min(size for size in sizes if size)


def return_freed_memory() -> None:
    """Have glibc give freed blocks back at once, so that resident memory is what is in use and
    repeats."""
    _set_malloc(
        {_M_ARENA_MAX: 1, _M_MMAP_THRESHOLD: 1 << 16, _M_TRIM_THRESHOLD: 1 << 16}, trim=True
    )


@functools.cache
def keep_freed_memory() -> None:
    """Have glibc reuse freed blocks of up to 32 MB instead of giving them back after every tar
    member.

    By default blocks above 128 KiB are mapped and unmapped each time: page faults then cost as much
    as reading. Process-wide. Once in a process: what is set afterwards (return_freed_memory) stays.
    """
    _set_malloc({_M_MMAP_THRESHOLD: 32 << 20, _M_TRIM_THRESHOLD: 64 << 20})


def _set_malloc(options: dict[int, int], trim: bool = False) -> None:
    with contextlib.suppress(OSError, AttributeError, TypeError):  # another C library than glibc
        libc = ctypes.CDLL(None)
        for option, value in options.items():
            libc.mallopt(option, value)
        if trim:
            libc.malloc_trim(0)
