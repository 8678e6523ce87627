"""The sentry: the files by which trainer and producer tell each other what is wanted and what is
made, and how long one waits without a sign of life.

Slow counts the epochs that are trained, so it is also the epoch in work; fast is the newest epoch
that lies whole on disk; top counts the epochs that are wanted. The trainer writes slow and top, the
producer fast. Each file has one writer, which holds a lock, and is replaced by a rename: no update
is lost. Each side counts in a file of its own while it lives; the other side, when it waits, looks
whether that count moves. No time stamp is compared, no file holds an absolute path, and files are
opened anew each time.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self, TypeVar

import orjson

from millrace.common import atomic
from millrace.common.cli import log
from millrace.common.errors import MillraceError, counted
from millrace.common.settings import setting
from millrace.common.stopping import Requeue
from millrace.common.training import run_folder
from millrace.image.producer import epochs

T = TypeVar("T")
BOOT = ""
with contextlib.suppress(OSError):  # Linux only
    BOOT = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
_STEPS = {"trainer": "train_active", "producer": "create_epochs"}


@dataclass(frozen=True)
class Times:
    """How a side of the sentry keeps time, by its own clock only."""

    beat: float = setting(1.0, "seconds between two signs of life", above=0)
    wait_limit: float = setting(
        1800.0, "seconds to wait for a side that gives no sign of life", above=0
    )


class Wanted(NamedTuple):
    """The trainer's pointers. `attempt` counts the starts of trainers; `top` is 0 of one that has
    not said yet what it wants."""

    slow: int
    top: int
    attempt: int


class Made(NamedTuple):
    """The producer's: newest whole epoch, the trainer's attempt that it knows, whether all is made.

    `boot` is drawn by the producer's kernel when it starts: what an earlier one left may not be on
    disk.
    """

    fast: int
    attempt: int
    is_done: bool
    boot: str


class Beat(NamedTuple):
    """The sign of life of a side; `where` and `activity` are for people."""

    count: int  # type: ignore[assignment] # hides tuple.count: it is the key in the file
    is_working: bool
    where: str
    activity: str


class Pointers:
    """The files of a sentry, each read anew at every call; None if the side has never been
    there."""

    def __init__(self, folder: str | os.PathLike) -> None:
        """`folder` holds the epochs; the pointers lie in `sentry/` there."""
        self.folder = Path(folder)
        self.place = self.folder / "sentry"

    def wanted(self) -> Wanted | None:
        """What the trainer says."""
        return self._read("trainer.json", Wanted)

    def made(self) -> Made | None:
        """What the producer says."""
        return self._read("producer.json", Made)

    def beat(self, side: str) -> Beat | None:
        """The last sign of life of `side`."""
        return self._read(f"{side}.beat", Beat)

    def is_counting(self, side: str, seconds: float) -> bool:
        """Whether the count of `side` moves within `seconds`."""
        first = self.beat(side)
        deadline = time.monotonic() + seconds
        while first and first.is_working and time.monotonic() < deadline:
            time.sleep(seconds / 15)
            now = self.beat(side)
            if now and now != first:
                return now.is_working
        return False

    def write(self, name: str, value: Wanted | Made | Beat) -> None:
        """Replace a file by a rename. Pointers are fsynced; a beat that a power cut loses does no
        harm."""
        raw = orjson.dumps(value._asdict(), option=orjson.OPT_APPEND_NEWLINE)
        if not isinstance(value, Beat):
            atomic.write_bytes(self.place / name, raw)
            return
        partial = self.place / f".{name}.partial"
        partial.write_bytes(raw)
        os.replace(partial, self.place / name)

    def _read(self, name: str, kind: Callable[..., T]) -> T | None:
        path = self.place / name
        try:
            return kind(**orjson.loads(path.read_bytes()))
        except OSError as error:
            # ESTALE: replaced while a network file system opened it. The next look reads the new
            # one.
            if error.errno in (errno.ENOENT, errno.ESTALE):
                return None
            raise
        except (ValueError, TypeError) as error:
            remedy = "Remove the folder while neither side is at work"
            raise MillraceError(f"is no file of the sentry ({error})", str(path), remedy) from None


class _Side(Pointers):
    """What both sides do: beat, look at the other side's beats, wait for it."""

    name: str
    other: str
    patience = 60.0  # seconds to wait for the end of another process of this side

    def __init__(
        self,
        folder: str | os.PathLike,
        times: Times | None = None,
        is_stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        """`is_stopped` ends a wait."""
        super().__init__(folder)
        self.times = times or Times()
        self._is_stopped = is_stopped
        self.poll = min(self.times.beat, 1.0) / 5
        self.activity = "starts"  # for people
        self._count = 0
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._live, daemon=True)
        self._lock = contextlib.ExitStack()

    def __enter__(self) -> Self:
        """Raises MillraceError if another process of this side is at work, and goes on for
        `patience` seconds: one that was told to end may be in the middle of a file."""
        problem = f"a {self.name} is at work here already"
        lock = f"{self.name}.lock"
        remedy = "Wait for it, or end it"
        held = run_folder.held(self.place, self.patience, lock, problem, remedy)
        self._lock.enter_context(held)
        self._begin()
        self._beat(True)
        self._thread.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        with self._lock:
            self._ending.set()
            self._thread.join()
            self.activity = "was stopped" if kind else "has ended"
            self._beat(False)

    def _begin(self) -> None:
        """What comes before the first sign of life."""

    def check(self) -> None:
        """Raise Requeue on `is_stopped`."""
        if self._is_stopped():
            raise Requeue

    def wait(self, ready: Callable[[], T | None], what: str) -> T:
        """Poll `ready` until it gives a value; say who is waited for.

        Raises MillraceError if the other side gives no sign of life for `wait_limit` seconds.
        """
        seen = self.beat(self.other)
        seen_at = time.monotonic()
        is_said = False
        while (value := ready()) is None:
            self.check()
            if not is_said:
                log.info("waiting for %s: %s", what, self._how(seen))
            is_said = True

            now = self.beat(self.other)
            silent = time.monotonic() - seen_at
            if now != seen:
                seen = now
                seen_at = time.monotonic()
            elif silent >= self.times.wait_limit:
                problem = f"no sign of life for {silent:.0f} s while waiting for {what}"
                raise MillraceError(f"{problem}: {self._how(seen)}", str(self.folder))
            time.sleep(self.poll)
        return value

    def _how(self, seen: Beat | None) -> str:
        """What the other side did last, and what starts it."""
        start = f"start millrace.image.{_STEPS[self.other]} for this folder, if it is not there"
        if seen is None:
            return f"no {self.other} has started; {start}"
        return f"the {self.other} ({seen.where}) {seen.activity}; {start}"

    def _live(self) -> None:
        while not self._ending.wait(self.times.beat):
            try:
                self._beat(True)
            # A full disk, a server away: the next beat may do.
            except OSError as error:
                log.warning("%s", error)

    def _beat(self, is_working: bool) -> None:
        self._count += 1
        where = f"{socket.gethostname()}, pid {os.getpid()}"
        beat = Beat(self._count, is_working, where, self.activity)
        self.write(f"{self.name}.beat", beat)


class Trainer(_Side):
    """The trainer's side, on one rank only: writes slow and top."""

    name = "trainer"
    other = "producer"
    _pointers = Wanted(0, 0, 0)

    def _begin(self) -> None:
        """Take back what an earlier trainer wanted, which a producer might serve, and end."""
        before = self.wanted()
        if before:
            self.write("trainer.json", Wanted(0, 0, before.attempt))

    def want(self, top: int, start: int = 0) -> None:
        """Epochs `start` to `top` - 1 are to be trained; those before are trained. Comes before all
        else."""
        before = self.wanted()
        attempt = before.attempt + 1 if before else 1
        self._point(Wanted(start, top, attempt))

    def is_ready(self, epoch: int) -> bool:
        """Whether the epoch can be read: whole, announced, and not about to be removed.

        A producer removes nothing before it has noted the trainer's attempt, or when all is made.
        """
        if epoch == 0:
            return True
        made = self.made()
        if made is None or made.fast < epoch:
            return False
        is_safe = made.is_done or made.attempt == self._pointers.attempt
        return is_safe and epochs.read_mark(self.folder, epoch) is not None

    def trained(self, epoch: int) -> None:
        """No reader needs the epoch any more, and the checkpoint behind it is saved."""
        if epoch != self._pointers.slow:
            raise ValueError(f"epoch {epoch} is not the one in work, {self._pointers.slow}")
        self.check()
        self._point(self._pointers._replace(slow=epoch + 1))

    def _point(self, pointers: Wanted) -> None:
        self._pointers = pointers
        self.write("trainer.json", pointers)
        # The producer may have ended: nobody else removes the last epochs.
        if pointers.slow >= pointers.top:
            removed = [
                number for number in epochs.whole(self.folder) if epochs.remove(self.folder, number)
            ]
            done = counted(pointers.slow, "epoch"), counted(len(removed), "folder")
            log.info("%s trained; %s removed", *done)


class Producer(_Side):
    """The producer's side: writes fast."""

    name = "producer"
    other = "trainer"

    def announce(self, fast: int, attempt: int, is_done: bool = False) -> None:
        """Epochs up to `fast` may be read by the trainer's start `attempt`."""
        self.check()
        self.write("producer.json", Made(fast, attempt, is_done, BOOT))

    def report(self, activity: str) -> None:
        """Note for people what is under way; raises as `check` does."""
        self.activity = activity
        self.check()
