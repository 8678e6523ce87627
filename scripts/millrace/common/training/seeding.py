"""Addressed randomness: every draw derives from a seed and names (epoch, sample id), not from
history; and how a loader's worker begins, with which signals it ignores.

So a draw is the same for any number of ranks and workers and after a resume, and differs between
epochs.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import signal
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from millrace.common.stopping import STOP_SIGNALS


def derive(seed: int, *names: int | str) -> int:
    """A seed (0 to 2^63 - 1) for the address `names` under `seed`: BLAKE2b, the same everywhere.

    `derive(1, "a", "b")` and `derive(1, "ab")` differ, and so do `derive(1, 2)` and `derive(1,
    "2")`.
    """
    digest = hashlib.blake2b(digest_size=8)
    for name in (seed, *names):
        if isinstance(name, str):
            kind = b"s"
            raw = name.encode("utf-8")
        elif isinstance(name, int | np.integer):
            # Floats that only look like integers stay out of addresses.
            kind = b"i"
            raw = str(int(name)).encode("utf-8")
        else:
            raise TypeError(f"an address is made of int and str, not {type(name).__name__}")
        digest.update(kind + len(raw).to_bytes(8, "little") + raw)
    return int.from_bytes(digest.digest(), "little") >> 1


def generator(seed: int, *names: int | str) -> np.random.Generator:
    """A numpy generator (Philox) for an address, such as `generator(seed, epoch, sample_id)`."""
    return np.random.Generator(np.random.Philox(derive(seed, *names)))


def seed_all(seed: int, *names: int | str, device: bool = True) -> None:
    """Seed Python, numpy, torch and (if `device`) its devices, for code that draws without an
    address."""
    random.seed(derive(seed, *names, "python"))
    np.random.seed(derive(seed, *names, "numpy") % 2**32)
    drawn = derive(seed, *names, "torch")
    if device:
        torch.manual_seed(drawn)
    else:
        torch.default_generator.manual_seed(drawn)


@contextlib.contextmanager
def addressed(seed: int, *names: int | str) -> Iterator[None]:
    """Code inside draws from an address (on the host); afterwards the generators are as they
    were."""
    with preserved(device=False):
        seed_all(seed, *names, device=False)
        yield


@contextlib.contextmanager
def preserved(device: bool = True) -> Iterator[None]:
    """Whatever code inside draws, the generators of host and device are afterwards as they were."""
    before = rng_state(device)
    try:
        yield
    finally:
        set_rng_state(before)


def rng_state(device: bool = True) -> dict[str, Any]:
    """The states of all generators (of CUDA's if used), in types that torch.load(weights_only=True)
    reads."""
    drawn = np.random.get_state()
    assert isinstance(drawn, tuple)  # a dict comes with legacy=False only
    name, keys, *rest = drawn
    state: dict[str, Any] = {
        "python": random.getstate(),
        "numpy": (name, keys.tolist(), *rest),
        "torch": torch.get_rng_state(),
    }
    if device and torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def set_rng_state(state: dict[str, Any]) -> None:
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    name, keys, *rest = state["numpy"]
    np.random.set_state((name, np.asarray(keys, np.uint32), *rest))
    torch.set_rng_state(state["torch"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])


def one_interop_thread() -> None:
    """One thread between operators: ranks and workers are the parallelism. At the start of a
    process."""
    with contextlib.suppress(RuntimeError):  # it is set already, or too late to be set
        torch.set_num_interop_threads(1)


def start_worker(number: int) -> None:
    """`worker_init_fn` of every DataLoader: one thread, seeded generators, no stop signals but the
    trainer's.

    Slurm and torchrun signal whole groups of processes. The trainer wants to finish its step, for
    which it needs its workers; it ends them itself, and they leave when it is gone.
    """
    torch.set_num_threads(1)
    one_interop_thread()
    # torch.initial_seed() of a worker is the loader's base seed plus the worker's number.
    seed_all(torch.initial_seed(), "worker", number, device=False)
    for stop in STOP_SIGNALS:
        # For threads that were there before the signals were blocked.
        signal.signal(stop, lambda number, frame: None)
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    threading.Thread(
        target=_exit_when_told, args=(os.getppid(),), daemon=True, name="stop signals"
    ).start()


def _exit_when_told(trainer: int) -> None:
    """Exit on SIGTERM from the trainer: a loader that is closed, or Python at its end, sends it and
    waits."""
    while True:
        received = signal.sigwaitinfo(STOP_SIGNALS)
        if received.si_signo == signal.SIGTERM and received.si_pid == trainer:
            os._exit(0)
