"""Read damaged files in processes of their own, and say what should not have happened.

A find is a process that dies, an error that no caller expects, a file that takes 10 s, more memory
than an honest file and GROWTH, or a file written outside of the folder.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import sys
import tempfile
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.fuzz.damage import damaged
from tests.fuzz.kinds import KINDS

SECONDS = 10
GROWTH = 1 << 30
CHUNK = 1000


class Find(NamedTuple):
    """What went wrong, and the seed that shows it again."""

    kind: str
    seed: int
    problem: str


def finds(kind: str, count: int, first_seed: int = 0) -> Iterator[Find]:
    """Read `count` damaged files of a kind; yields what should not have happened."""
    end = first_seed + count
    seed = first_seed
    while seed < end:
        receiver, sender = multiprocessing.Pipe(duplex=False)
        child = multiprocessing.get_context("fork").Process(
            target=_read_chunk, args=(kind, seed, min(seed + CHUNK, end), sender)
        )
        child.start()
        sender.close()
        reached, problem = seed, "nothing was read"
        try:
            while True:
                reached, problem = receiver.recv()
                if problem:
                    yield Find(kind, reached, problem)
        except EOFError:
            child.join()
        if child.exitcode:
            how = (
                "no end"
                if child.exitcode == -signal.SIGALRM
                else f"the process died ({child.exitcode})"
            )
            yield Find(kind, reached, how)
        seed = reached + 1


def _read_chunk(
    kind: str, first: int, end: int, sender: multiprocessing.connection.Connection
) -> None:
    # Libraries print what they think of damaged files.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    # A handler that the caller has set, as pytest-timeout does, would come with the fork.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(60)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "whole").mkdir()
        examples = KINDS[kind].examples(folder / "whole")
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + GROWTH, used + GROWTH))
        written = []
        sys.addaudithook(lambda event, args: _note_writes(event, args, name, written))
        for seed in range(first, end):
            sender.send((seed, ""))
            place = folder / "damaged"
            place.mkdir()
            signal.alarm(SECONDS)
            problem = _read(kind, examples[seed % len(examples)], seed, place)
            signal.alarm(0)
            if written:
                problem = f"wrote {written.pop()}"
            if problem:
                sender.send((seed, problem))
            for path in sorted(place.rglob("*"), reverse=True):
                path.rmdir() if path.is_dir() else path.unlink()
            place.rmdir()


def _read(kind: str, example: dict[str, bytes], seed: int, place: Path) -> str:
    """Damage one file of the example, write all, read them; what should not have happened, or
    ""."""
    chosen = sorted(example)[seed // 7 % len(example)]
    for path, content in example.items():
        (place / path).parent.mkdir(parents=True, exist_ok=True)
        (place / path).write_bytes(damaged(content, seed) if path == chosen else content)
    try:
        KINDS[kind].read(place)
    except KINDS[kind].expected:
        return ""
    except BaseException as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__}: {error} ({where.filename}:{where.lineno})"[:400]
    return ""


def _note_writes(event: str, args: tuple, folder: str, written: list[str]) -> None:
    if event != "open" or not isinstance(args[0], str | bytes):
        return
    path, flags = os.fsdecode(args[0]), args[2]
    is_write = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
    temporary = tempfile.gettempdir()  # itself: a file without a name
    if (
        is_write
        and path != temporary
        and not path.startswith((folder, f"{temporary}/tmp", os.devnull))
    ):
        written.append(path)
