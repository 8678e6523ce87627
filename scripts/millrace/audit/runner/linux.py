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
    """Whether threads of these processes compute, or wait for a core as on a busy machine, more
    than a tenth of the time."""
    looks = []
    for _ in range(20):
        time.sleep(0.025)
        looks.append(any(map(_runs, pids)))
    return looks.count(True) > 0.1 * len(looks)


def _runs(pid: int) -> bool:
    with suppress(OSError):
        threads = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/stat")]
        return any(text.rpartition(")")[2].startswith(" R") for text in threads)
    return False
