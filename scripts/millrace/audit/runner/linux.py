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
    """Whether these processes compute, or wait for a core as on a busy machine, more than a tenth
    of the time."""
    seconds = 0.5
    before = sum(map(_running, pids))
    time.sleep(seconds)
    return sum(map(_running, pids)) - before > 0.1 * seconds


def _running(pid: int) -> float:
    """Seconds that a process has computed, or waited for a core."""
    ticks = waited = 0
    with suppress(OSError, ValueError, IndexError):
        text = Path(f"/proc/{pid}/stat").read_text()
        fields = text.rpartition(")")[2].split()
        ticks = int(fields[11]) + int(fields[12])  # in user and in system mode
        waited = int(Path(f"/proc/{pid}/schedstat").read_text().split()[1])  # nanoseconds
    return ticks / os.sysconf("SC_CLK_TCK") + waited / 1e9
