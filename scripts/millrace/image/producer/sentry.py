"""The sentry: pointers between trainer and producer in a folder that both see.

Slow counts the epochs that are trained, so it is also the epoch in work; fast is the newest epoch
that lies whole on disk; top counts the epochs that are wanted. The trainer writes slow and top, the
producer fast. Each file has one writer and is replaced by a rename: nothing is locked, no update is
lost. Each side counts in a file of its own while it lives, and the other side looks whether that
count moves. No time stamp is compared, no file holds an absolute path, and files are opened anew
each time.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shlex
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self, TypeVar

import orjson

from millrace.common import atomic
from millrace.common.cli import log
from millrace.common.errors import MillraceError, counted
from millrace.common.settings import setting
from millrace.common.stopping import Requeue
from millrace.image.producer import epochs

T = TypeVar("T")
BOOT = ""
with contextlib.suppress(OSError):  # Linux only
    BOOT = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
_STEPS = {"trainer": "train_active", "producer": "create_epochs"}
# How a side is started that has never been there; "{folder}" is the folder as the host that asks
# sees it.
_FLAGS = {
    "trainer": ["{folder}"],
    "producer": ["--raw_data_dir={folder}", "--local_scratch_dir={folder}"],
}


@dataclass(frozen=True)
class Times:
    """How a side of the sentry keeps time, by its own clock only."""

    beat: float = setting(1.0, "seconds between two signs of life", above=0)
    dead_after: float = setting(
        120.0, "seconds without a sign of life after which a side is dead", above=0
    )
    wait_limit: float = setting(
        1800.0, "seconds to wait for a side that is dead or not there", above=0
    )


class Wanted(NamedTuple):
    """The trainer's pointers. `attempt` counts the starts of trainers, `flags` start this one
    again."""

    slow: int
    top: int
    attempt: int
    flags: list[str]


class Made(NamedTuple):
    """The producer's: newest whole epoch, the trainer's attempt that it knows, whether all is made.

    `boot` is drawn by the producer's kernel when it starts: what an earlier one left may not be on
    disk.
    """

    fast: int
    attempt: int
    is_done: bool
    flags: list[str]
    boot: str


class Beat(NamedTuple):
    """The sign of life of a side. `writer` is drawn when it starts; `where` and `activity` are for
    people."""

    count: int  # type: ignore[assignment] # hides tuple.count: it is the key in the file
    writer: str
    is_working: bool
    where: str
    activity: str


class Pointers:
    """The files of a sentry, each read anew at every call; None if the side has never been
    there."""

    def __init__(self, folder: str | os.PathLike, place: str | os.PathLike | None = None) -> None:
        """`folder` holds the epochs, `place` the pointers: `sentry/` in `folder`, if it is not
        given."""
        self.folder = Path(folder)
        self.place = Path(place) if place else self.folder / "sentry"

    def wanted(self) -> Wanted | None:
        """What the trainer says."""
        return self._read("trainer.json", Wanted)

    def made(self) -> Made | None:
        """What the producer says."""
        return self._read("producer.json", Made)

    def beat(self, side: str) -> Beat | None:
        """The last sign of life of `side`."""
        return self._read(f"{side}.beat", Beat)

    def counting(self, side: str, seconds: float) -> Beat | None:
        """The sign of life of `side` if its count moves within `seconds`; None if it stands
        still."""
        first = self.beat(side)
        deadline = time.monotonic() + seconds
        while first and first.is_working and time.monotonic() < deadline:
            time.sleep(seconds / 15)
            if (now := self.beat(side)) and now != first:
                return now if now.is_working else None
        return None

    def command(self, side: str) -> str:
        """The command that starts a side, with the flags that it had last and the folder as it is
        here."""
        last = self.wanted() if side == "trainer" else self.made()
        words = list(last.flags if last and last.flags else _FLAGS[side])
        if self.place != self.folder / "sentry":
            words.append(f"--sentry-dir={os.path.abspath(self.place)}")
        words = [word.replace("{folder}", os.path.abspath(self.folder)) for word in words]
        return shlex.join(["python", "-m", f"millrace.image.{_STEPS[side]}", *words])

    def write(self, name: str, value: Wanted | Made | Beat) -> None:
        """Replace a file by a rename. Pointers are fsynced; a beat that a power cut loses does no
        harm."""
        raw = orjson.dumps(value._asdict(), option=orjson.OPT_APPEND_NEWLINE)
        if not isinstance(value, Beat):
            atomic.write_bytes(self.place / name, raw)
            return
        partial = self.place / f".{name}.{value.writer}"
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

    def __init__(
        self,
        folder: str | os.PathLike,
        place: str | os.PathLike | None = None,
        times: Times | None = None,
        flags: Sequence[str] = (),
        is_stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        """`flags` start this side again; a path in them begins with "{folder}". `is_stopped` ends a
        wait."""
        super().__init__(folder, place)
        self.times = times or Times()
        self.flags = list(flags)
        self._is_stopped = is_stopped
        self.poll = min(self.times.beat, 1.0) / 5
        self.activity = "starts"  # for people, who ask the status
        self._writer = secrets.token_hex(8)
        self._count = 0
        self._successor = ""
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._live, daemon=True)
        self._seen: Beat | None = None
        self._seen_at = time.monotonic()
        self._is_dead = False

    def __enter__(self) -> Self:
        self.place.mkdir(parents=True, exist_ok=True)
        self._await_place()
        self._beat(True)
        self._watch()
        self._thread.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._ending.set()
        self._thread.join()
        self.activity = "was stopped" if kind else "has ended"
        if not self._successor:
            self._beat(False)

    def _await_place(self) -> None:
        """Wait `dead_after` seconds for another process of this side to end; raise if it goes on
        counting.

        One that was killed stands still; one that was told to end may be in the middle of a file.
        """
        deadline = time.monotonic() + self.times.dead_after
        is_said = False
        while second := self.counting(self.name, 3 * self.times.beat):
            text = f"a {self.name} is at work here already ({second.where}: {second.activity})"
            if time.monotonic() > deadline:
                raise MillraceError(text, str(self.place), "Wait for it, or end it")
            if not is_said:
                log.info(
                    "%s: %s; waiting %g s for its end", self.place, text, self.times.dead_after
                )
            is_said = True

    def check(self) -> None:
        """Raise MillraceError if another process has taken this side's place, Requeue on
        `is_stopped`."""
        if self._is_stopped():
            raise Requeue
        if self._successor:
            problem = f"another {self.name} has taken over ({self._successor})"
            raise MillraceError(problem, str(self.place), f"Start one {self.name} only")

    def wait(self, ready: Callable[[], T | None], what: str) -> T:
        """Poll `ready` until it gives a value; say who is waited for, and how to start it if it is
        not there.

        Raises MillraceError if the other side gives no sign of life for `wait_limit` seconds.
        """
        began = time.monotonic()
        said = None
        while (value := ready()) is None:
            self.check()
            is_there = self._seen is not None and self._seen.is_working and not self._is_dead
            silent = 0.0
            if not is_there:
                silent = time.monotonic() - max(began, self._seen_at)
            if silent >= self.times.wait_limit:
                problem = f"waited {silent:.0f} s for {what}, but {self._how()}"
                remedy = f"Start it, then this again: {self.command(self.other)}"
                raise MillraceError(problem, str(self.folder), remedy)
            if is_there is not said and (
                said is None or not self._is_dead
            ):  # of a death, `_watch` tells
                remedy = "" if is_there else f". Start it: {self.command(self.other)}"
                log.info("waiting for %s: %s%s", what, self._how(), remedy)
            said = is_there
            time.sleep(self.poll)
        return value

    def _how(self) -> str:
        if self._seen is None:
            return f"no {self.other} has started"
        dead = (
            f"is dead, no sign of life for {self.times.dead_after:g} s (was: {self._seen.activity})"
        )
        return (
            f"the {self.other} ({self._seen.where})"
            f" {dead if self._is_dead else self._seen.activity}"
        )

    def _live(self) -> None:
        while not self._ending.wait(self.times.beat):
            try:
                self._beat(True)
                self._watch()
            except (
                OSError,
                MillraceError,
            ) as error:  # a full disk, a server away: the next beat may do
                log.warning("%s", error)

    def _beat(self, is_working: bool) -> None:
        now = self.beat(self.name)
        if self._count and now and now.writer != self._writer:
            self._successor = now.where
            return
        self._count += 1
        where = f"{socket.gethostname()}, pid {os.getpid()}"
        self.write(
            f"{self.name}.beat", Beat(self._count, self._writer, is_working, where, self.activity)
        )

    def _watch(self) -> None:
        """Look whether the other side's count moves; say so if it is dead, and if it is back."""
        now = self.beat(self.other)
        clock = time.monotonic()
        if now is not None and now != self._seen:
            if self._is_dead:
                log.info("the %s is back (%s)", self.other, now.where)
            self._seen = now
            self._seen_at = clock
            self._is_dead = False
            return
        is_silent = clock - self._seen_at >= self.times.dead_after
        is_expected = now is not None and now.is_working and not self._is_dead
        if is_silent and is_expected:
            self._is_dead = True
            log.error("%s. Start it again: %s", self._how(), self.command(self.other))


class Trainer(_Side):
    """The trainer's side, on one rank only: writes slow and top."""

    name = "trainer"
    other = "producer"
    _pointers = Wanted(0, 0, 0, [])

    def want(self, top: int, start: int = 0) -> None:
        """Epochs `start` to `top` - 1 are to be trained; those before are trained. Comes before all
        else."""
        before = self.wanted()
        attempt = before.attempt + 1 if before else 1
        self._point(Wanted(start, top, attempt, self.flags))

    def is_ready(self, epoch: int) -> bool:
        """Whether the epoch can be read: whole, announced, and not about to be removed.

        A producer removes nothing before it has noted the trainer's attempt, or when all is made.
        """
        made = self.made()
        if made is None:
            return epoch == 0
        is_safe = made.is_done or made.attempt == self._pointers.attempt
        is_whole = (
            is_safe and made.fast >= epoch and epochs.read_mark(self.folder, epoch) is not None
        )
        return epoch == 0 or is_whole

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
        self.write("producer.json", Made(fast, attempt, is_done, self.flags, BOOT))

    def report(self, activity: str) -> None:
        """Note for people what is under way; raises as `check` does."""
        self.activity = activity
        self.check()
