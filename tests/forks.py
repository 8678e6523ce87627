"""Processes that begin with what this one has loaded: a new Python takes seconds to import
torch."""

from __future__ import annotations

import functools
import multiprocessing
import os
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

from millrace.common.errors import MillraceError
from millrace.common.training.ranks import listen

LIMIT_SECONDS = 180
_STORES: list[torch.distributed.TCPStore] = []  # for as long as ranks may meet there
Work = Callable[[], int | None]


def start(work: Work, errors: Path, **environment: str) -> BaseProcess:
    """A fork, in a process group of its own, that ends with what `work` returns as its exit code.

    What it and its children write to stderr is appended to the file `errors`.
    """
    _import_for_all()
    fork = multiprocessing.get_context("fork")
    process = fork.Process(target=_run, args=(work, errors, environment))
    process.start()
    return process


def start_ranks(count: int, work: Work, errors: Path) -> list[BaseProcess]:
    """Forks as the ranks of one run, which meet in a store as torchrun's; one of `count` 1 has no
    peers."""
    if count == 1:
        return [start(work, errors)]
    listener = listen("127.0.0.1", 0)
    port = listener.getsockname()[1]
    store = torch.distributed.TCPStore(
        "127.0.0.1",
        port,
        is_master=True,
        wait_for_workers=False,
        master_listen_fd=listener.detach(),
    )
    _STORES.append(store)
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    place |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0"}
    sizes = {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count)}
    return [
        start(work, errors, RANK=str(rank), LOCAL_RANK=str(rank), **place, **sizes)
        for rank in range(count)
    ]


def joined(processes: list[BaseProcess]) -> list[int]:
    """Their exit codes, once all have ended; one that hangs is killed, and fails the test."""
    for process in processes:
        process.join(LIMIT_SECONDS)
    hanging = [process for process in processes if process.exitcode is None]
    for process in hanging:
        process.kill()
    assert not hanging, "processes hang"
    return [process.exitcode for process in processes]


@functools.cache
def _import_for_all() -> None:
    """What each run would import for itself, in seconds."""
    import lightning_fabric.strategies  # noqa: F401
    import torch._dynamo  # noqa: F401
    import transformers.audio_utils  # noqa: F401


def _run(work: Work, errors: Path, environment: dict[str, str]) -> None:
    os.setsid()
    torch.set_num_threads(1)
    os.environ.update(environment)
    stream = open(errors, "a", buffering=1)  # noqa: SIM115 - until the process ends
    os.dup2(stream.fileno(), 2)
    sys.stderr = stream
    sys.exit(work() or 0)


def answered(work: Callable[[], Any]) -> Any:
    """What `work` returns in a fork. Raises the MillraceError that it raises."""
    _import_for_all()
    fork = multiprocessing.get_context("fork")
    receiver, sender = fork.Pipe(duplex=False)
    process = fork.Process(target=_answer, args=(work, sender))
    process.start()
    sender.close()
    try:
        answer, error = receiver.recv()
    finally:
        process.join()
    if error:
        raise MillraceError(*error)
    return answer


def _answer(work: Callable[[], Any], sender: Connection) -> None:
    torch.set_num_threads(1)
    try:
        sender.send((work(), None))
    except MillraceError as error:
        sender.send((None, (error.problem, error.where, error.remedy)))
