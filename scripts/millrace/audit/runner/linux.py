"""What Linux shows of processes, their memory and their files; elsewhere these functions find
nothing."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

from millrace.common import processes


def descendants(pid: int = 0) -> list[int]:
    """All processes below `pid` (0: this one), of any depth."""
    return processes.children(pid or os.getpid(), recursive=True)


def is_tracker(pid: int) -> bool:
    """Python's trackers and torch's end by themselves after their process, and remove what it left
    in /dev/shm."""
    with suppress(OSError):
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        return b"resource_tracker" in command or b"torch_shm_manager" in command
    return False


def anonymous_bytes(pid: int) -> int:
    """Resident memory that is no file's: quick to read, but counts what a fork still shares."""
    with suppress(OSError, ValueError, IndexError):
        fields = Path(f"/proc/{pid}/statm").read_text().split()
        pages = int(fields[1]) - int(fields[2])
        return pages * os.sysconf("SC_PAGE_SIZE")
    return 0


def is_busy(pids: list[int]) -> bool:
    """Whether these processes compute, more than a tenth of a core, or wait for a core as on a busy
    machine."""
    looks = 5
    before = sum(_state(pid)[1] for pid in pids)
    waiting = 0
    for _ in range(looks):
        time.sleep(0.1)
        waiting += any(_state(pid)[0] == "R" for pid in pids)
    used = sum(_state(pid)[1] for pid in pids) - before
    return used > 0.01 * looks * os.sysconf("SC_CLK_TCK") or 2 * waiting > looks


def _state(pid: int) -> tuple[str, int]:
    """How the kernel calls the state of a process, and its ticks in user and in system mode."""
    with suppress(OSError, ValueError, IndexError):
        text = Path(f"/proc/{pid}/stat").read_text()
        fields = text.rpartition(")")[2].split()
        return fields[0], int(fields[11]) + int(fields[12])
    return "", 0
