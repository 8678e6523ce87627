"""Processes of this host, as /proc shows them."""

from __future__ import annotations

from pathlib import Path


def started(pid: int) -> int | None:
    """When a process started, in clock ticks since boot, as pids are used again; None if it is dead."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def children(parent: int) -> list[int]:
    """The processes that `parent` has started and that have not been waited for."""
    pids = []
    for entry in Path("/proc").iterdir():
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split() if entry.name.isdigit() else []
        except OSError:
            continue
        if fields and int(fields[1]) == parent:
            pids.append(int(entry.name))
    return pids
