"""The environment of training processes (threads, NCCL, CUDA), which processes of this host live,
and what people are told of a loader's worker that was killed."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

from millrace.common.errors import MillraceError

# What the rules set before training's Python starts. One thread per numeric library: ranks and
# workers are the parallelism. Expandable segments keep batches of many shapes from fragmenting CUDA
# memory; parallel launch lets the ranks of one host start NCCL kernels without waiting for each
# other. CUDA counts GPUs as nvidia-smi and NVML do, and not by speed.
# A rank whose peers are silent for `timeout_seconds` ends by itself (3: without a cleanup, which
# may hang too), and so does one whose NCCL thread has hung in a call of CUDA for as long as a
# heartbeat:
# else it would wait for ever, deaf to signals, and the launcher could name no rank that was lost.
TRAINING_ENVIRONMENT = {
    **{f"{library}_NUM_THREADS": "1" for library in ("OMP", "MKL", "OPENBLAS", "NUMEXPR", "TORCH")},
    "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
    "NCCL_LAUNCH_MODE": "PARALLEL",
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3",
    "TORCH_NCCL_ENABLE_MONITORING": "1",
    "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "480",
}


def stay_on_loopback() -> None:
    """Have gloo and NCCL connect the ranks of one machine by its loopback interface.

    By themselves they listen where the whole network can reach them. What the user has set stays.
    """
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")


def take_training_environment() -> None:
    """Set what training needs and nobody has set, before torch is imported; plain torchrun does
    not."""
    os.environ.update({**TRAINING_ENVIRONMENT, **os.environ})


def die_with_parent(signal_number: int) -> None:
    """Get a signal when the parent process ends, 0 for none; does nothing where the kernel is not
    Linux."""
    _prctl(1, int(signal_number))  # PR_SET_PDEATHSIG


def adopt_orphans() -> None:
    """Become the parent of all descendants whose own parent ends; does nothing outside of Linux."""
    _prctl(36, 1)  # PR_SET_CHILD_SUBREAPER


def _prctl(option: int, value: int) -> None:
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def started(pid: int) -> int | None:
    """When a process started, in clock ticks since boot, as pids are used again; None if it is
    dead."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    if fields[0] in "ZX":
        return None
    return int(fields[19])


def children(parent: int, recursive: bool = False) -> list[int]:
    """The processes that `parent` has started and that have not been waited for; `recursive`:
    theirs too."""
    below: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, IndexError):  # it ends just now
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            below.setdefault(int(fields[1]), []).append(int(entry.name))
    pids = list(below.get(parent, []))
    for pid in pids:  # which grows meanwhile
        pids += below.get(pid, []) if recursive else []
    return pids


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """The error, its cause, the cause of that. torch raises a worker's death at any statement, also
    in the middle of a checkpoint, whose half written file then raises an error of its own."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def lost_worker(error: BaseException) -> MillraceError | None:
    """What torch's DataLoader says of a dead worker as an error with a remedy; None for all other
    errors.

    torch knows the signal or the exit code only where the kernel reports the death before a broken
    connection does.
    """
    pattern = r"DataLoader worker \(pid\S* (.+?)\) "
    pattern += r"(?:is killed by signal: ([^.]+)|exited unexpectedly( with exit code \d+)?)"
    deaths = []
    for cause in causes(error):
        death = re.match(pattern, str(cause))
        if death:
            deaths.append(death)
    if not deaths:
        return None
    # Where it noticed in the middle of a read, only the cause names the signal.
    death = next((death for death in deaths if death[2]), deaths[0])
    names = {signal.strsignal(number): number.name for number in signal.Signals}
    end = f"ended unexpectedly{death[3] or ''}"
    remedy = "Probably memory or /dev/shm ran out: give the job more, or lower num_workers or "
    remedy += "prefetch_factor"
    if death[2]:
        name = names.get(death[2], death[2])
        end = f"was killed by {name}"
        if name in ("SIGABRT", "SIGSEGV"):
            remedy = "A library has crashed: the lines before say which"
    remedy += ". The same command goes on from the last checkpoint"
    return MillraceError(f"a loader worker (pid {death[1]}) {end}", remedy=remedy)
