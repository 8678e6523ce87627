"""Runs a plan: each launch in a process of its own, as a job that is started again."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import random
import re
import signal
import socket
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from tests.exactness.adapters import Adapter, Loader, Place, Setting
from tests.exactness.plans import Launch, Plan, Stop

SECONDS = 120
"""A launch that takes longer has no end."""


class Read(NamedTuple):
    """A batch that counts: what was read before a save that the next launch went on from."""

    launch: int
    rank: int
    epoch: int
    ids: list[int]


class Failure(NamedTuple):
    """Why a launch ended with an error."""

    kind: str
    text: str
    frame: str


class Outcome(NamedTuple):
    """What a plan came to: all batches in their order by rank, and an error that ended it."""

    reads: list[Read]
    failure: Failure | None


class Saved(NamedTuple):
    """The last checkpoint: the epoch in which to go on, and the state of each rank."""

    epoch: int = 0
    states: tuple[bytes, ...] = ()


class RankRun(NamedTuple):
    """What one rank read and saved in a launch; `epoch` is None after the last epoch."""

    epoch: int | None
    state: bytes | None
    reads: list[tuple[int, list[int]]]


class Job(NamedTuple):
    """One launch of a plan: what it opens, how far it reads, and from which checkpoint."""

    adapter: Adapter
    setting: Setting
    launch: Launch
    epochs: int
    saved: Saved


def run(
    adapter: Adapter, folder: Path, plan: Plan, seed: int = 0, global_batch: int | None = None
) -> Outcome:
    """Run a plan to its end or to the first error."""
    of_all = global_batch or plan.global_batch
    setting = Setting(folder, plan.samples, plan.batch_size, of_all, seed)
    start = in_ranks if adapter.ABOUT.processes else in_one_process
    reads = []
    saved = Saved()
    for number, launch in enumerate(plan.launches):
        results = start(Job(adapter, setting, launch, plan.epochs, saved))
        failed = [result for result in results if isinstance(result, Failure)]
        if failed:
            return Outcome(reads, failed[0])

        runs = results
        for rank, result in enumerate(runs):
            reads += [Read(number, rank, epoch, ids) for epoch, ids in result.reads]
        epochs = [result.epoch for result in runs if result.epoch is not None]
        if len(epochs) < len(runs):
            return Outcome(reads, None)  # the run ended before its stop
        states = [result.state for result in runs if result.state is not None]
        if len(states) == len(runs):
            saved = Saved(max(epochs), tuple(states))
    return Outcome(reads, None)


def in_one_process(job: Job) -> list:
    """The ranks of a launch one after the other in one new process: they share no batch, so the
    order in which they read does not matter."""
    launch = job.launch

    def body() -> list:
        results = []
        loaders = []
        for rank in range(launch.ranks):
            with rank_in_environment(rank, launch.ranks):
                place = Place(rank, launch.ranks, launch.workers)
                results.append(run_rank(job, place, loaders))
        _end(launch, loaders)
        return results

    (result,) = forked([body], launch)
    return [result] if isinstance(result, Failure) else result


def in_ranks(job: Job) -> list:
    """Each rank of a launch in a process of its own, in a gloo group if there are several."""
    launch = job.launch
    port = _free_port()

    def body(rank: int) -> RankRun:
        with rank_in_environment(rank, launch.ranks, port):
            if launch.ranks > 1:
                torch.distributed.init_process_group("gloo")
            loaders = []
            result = run_rank(job, Place(rank, launch.ranks, launch.workers), loaders)
            if launch.ranks > 1:
                torch.distributed.barrier()
            _end(launch, loaders)
            return result

    return forked([partial(body, rank) for rank in range(launch.ranks)], launch)


@contextlib.contextmanager
def rank_in_environment(rank: int, world_size: int, port: int = 0) -> Iterator[None]:
    """RANK and WORLD_SIZE as torchrun sets them, for libraries that look there."""
    names = {"RANK": rank, "WORLD_SIZE": world_size, "LOCAL_RANK": rank, "MASTER_PORT": port}
    names |= {"LOCAL_WORLD_SIZE": world_size, "GLOBAL_RANK": rank, "MASTER_ADDR": "127.0.0.1"}
    os.environ.update({name: str(value) for name, value in names.items()})
    try:
        yield
    finally:
        for name in names:
            del os.environ[name]


class _Failed(Exception):
    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.text)
        self.failure = failure


def run_rank(job: Job, place: Place, loaders: list[Loader]) -> RankRun:
    """Open, restore, read up to the stop; the loader is left in `loaders`. Raises _Failed."""
    seed = job.setting.seed
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    with _naming():
        loader = job.adapter.open(job.setting, place)
        loaders.append(loader)
    states = job.saved.states
    if states:
        state = states[place.rank if place.rank < len(states) else 0]
        with _naming():
            loader.restore(pickle.loads(state))
    return _read(loader, job)


def _read(loader: Loader, job: Job) -> RankRun:
    """The epochs up to the stop, as a trainer's loop that saves after each batch and after each
    epoch; what was read after the save that counts is left out."""
    stop, first = job.launch.stop, job.saved.epoch
    if stop is None:
        reads = [read for epoch in range(first, job.epochs) for read in _epoch(loader, epoch)]
        return RankRun(None, None, reads)

    reads = []
    state = None
    last = first + stop.epochs
    for epoch in range(first, min(last, job.epochs)):
        reads += _epoch(loader, epoch)
        state = _state(loader)
    if last >= job.epochs:
        return RankRun(None, None, reads)

    if stop.batches is None:
        reads += _epoch(loader, last)
        return _after(loader, job, reads)
    if stop.batches == 0:
        return RankRun(last, _state(loader), reads)
    result = _part(loader, last, stop)
    if result.state is None and stop.unsaved:
        result = result._replace(state=state)  # of the last epoch, if any
    elif result.state is None:
        return _after(loader, job, reads)  # nothing was left of the epoch
    return result._replace(reads=reads + result.reads)


def _after(loader: Loader, job: Job, reads: list[tuple[int, list[int]]]) -> RankRun:
    """The loop over the epoch of the stop has ended."""
    epoch = job.saved.epoch + job.launch.stop.epochs + 1
    if epoch == job.epochs:
        return RankRun(None, None, reads)
    return RankRun(epoch, _state(loader), reads)


def _epoch(loader: Loader, epoch: int) -> list[tuple[int, list[int]]]:
    with _naming():
        return [(epoch, ids) for ids in loader.batches(epoch)]


def _part(loader: Loader, epoch: int, stop: Stop) -> RankRun:
    """Batches up to the stop that were read before the last save; without any, no state."""
    result = RankRun(epoch, None, [])
    reads = []
    with _naming():
        for ids in loader.batches(epoch):
            reads.append((epoch, ids))
            if len(reads) <= stop.batches - stop.unsaved:
                result = RankRun(epoch, _state(loader), [*reads])
            if len(reads) == stop.batches:
                break
    return result


def _state(loader: Loader) -> bytes:
    with _naming():
        return pickle.dumps(loader.state())


@contextlib.contextmanager
def _naming() -> Iterator[None]:
    """Errors of a library, as failures with their place."""
    try:
        yield
    except _Failed:
        raise
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        file = re.sub(r".*/site-packages/", "", frame.filename)
        text = _first_words(str(error))
        failure = Failure(type(error).__name__, text, f"{file}:{frame.lineno}")
        raise _Failed(failure) from error


def _first_words(text: str) -> str:
    """The message of an error; of one that a worker sent, its last line."""
    lines = [line for line in text.strip().splitlines() if line.strip()] or [""]
    line = lines[-1] if text.startswith("Caught ") else " ".join(lines)
    return line.strip()[:300]


def _end(launch: Launch, loaders: list[Loader]) -> None:
    """Close what is open; a run that is killed does not."""
    if not _is_killed(launch):
        for loader in loaders:
            loader.close()


def _is_killed(launch: Launch) -> bool:
    """Really, by its process; with many workers it is only not saved, as they end seconds later."""
    is_kill = launch.stop is not None and launch.stop.unsaved > 0
    return is_kill and launch.ranks * launch.workers <= 2


def forked(bodies: list[Callable[[], Any]], launch: Launch) -> list:
    """The result of each in a new process, or the failure that ended it."""
    children = []
    for body in bodies:
        receiver, sender = multiprocessing.Pipe(duplex=False)
        pid = os.fork()
        if pid == 0:
            _child(body, sender, _is_killed(launch))
        sender.close()
        children.append((pid, receiver))

    results = []
    for _, receiver in children:
        try:
            if receiver.poll(SECONDS):
                results.append(receiver.recv())
            else:
                results.append(Failure("hang", f"nothing came for {SECONDS} s", ""))
        except EOFError:
            results.append(Failure("died", "the process died", ""))
        if isinstance(results[-1], Failure):
            # Others of its group may wait for it for ever.
            for other, _ in children:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(other, signal.SIGKILL)
    for pid, receiver in children:
        os.waitpid(pid, 0)
        receiver.close()
    return results


def _child(body: Callable[[], Any], sender: Any, is_killed: bool) -> None:
    os.setpgid(0, 0)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    if "EXACTNESS_VERBOSE" not in os.environ:
        # Libraries print what they think; errors come back as such.
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
    torch.set_num_threads(1)
    try:
        sender.send(body())
    except _Failed as error:
        if "EXACTNESS_VERBOSE" in os.environ:
            traceback.print_exc()
        sender.send(error.failure)
    except BaseException as error:
        traceback.print_exc()
        sender.send(Failure(type(error).__name__, str(error)[:300], ""))
    sender.close()
    sys.stdout.flush()
    os.kill(os.getpid(), signal.SIGKILL) if is_killed else os._exit(0)


def _free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return server.getsockname()[1]


class Data:
    """The data sets of an adapter, made once for each number of samples."""

    def __init__(self, adapter: Adapter) -> None:
        self.adapter = adapter
        self.folder = tempfile.TemporaryDirectory(prefix="exactness-")

    def of(self, samples: int) -> Path:
        folder = Path(self.folder.name, str(samples))
        if not folder.exists():
            folder.mkdir(parents=True)
            self.adapter.write(folder, samples)
        return folder
