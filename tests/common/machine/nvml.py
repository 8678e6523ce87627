"""NVML of a machine with six GPUs, as far as counters are read."""

from __future__ import annotations

from types import SimpleNamespace

UUIDS = [f"GPU-e{number}000000-0000-0000-0000-000000000000" for number in range(6)]


class StandInNvml:
    """In the place of the module pynvml. GPU n is busy for n tenths of the time, and holds n kB."""

    @staticmethod
    def nvmlInit() -> None:
        pass

    @staticmethod
    def nvmlDeviceGetCount() -> int:
        return len(UUIDS)

    @staticmethod
    def nvmlDeviceGetHandleByIndex(number: int) -> int:
        return number

    @staticmethod
    def nvmlDeviceGetUUID(handle: int) -> str:
        return UUIDS[handle]

    @staticmethod
    def nvmlDeviceGetUtilizationRates(handle: int) -> SimpleNamespace:
        return SimpleNamespace(gpu=10 * handle)

    @staticmethod
    def nvmlDeviceGetMemoryInfo(handle: int) -> SimpleNamespace:
        return SimpleNamespace(used=1000 * handle)
