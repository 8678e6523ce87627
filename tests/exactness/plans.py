"""Plans: a run of a few epochs that stops and goes on, each in one line of text."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from random import Random
from typing import NamedTuple

COLUMNS = ("same", "workers", "ranks")
"""What changes between the launches of a plan: nothing, the workers, or the ranks."""

SIZES = (12, 25, 32, 60, 96, 150)
SMALL_SIZES = (4, 8)
"""Samples of the data sets: those of random plans, and those that only shorter plans have."""

_BATCH_SIZES = (2, 3, 4, 8)
_RANKS = (1, 1, 1, 2, 2, 2, 3, 4, 8)
_WORKERS = (0, 0, 0, 1, 2, 2, 3, 4)


class Stop(NamedTuple):
    """Where a launch ends.

    `epochs`: that are read to their end before. `batches`: then read of the next one, at most all
    there are; None: the loop over it ends too, and the state is saved after the loop. `unsaved`:
    the last batches, which were read after the last save, as in a run that is killed; 0: no kill.
    """

    epochs: int
    batches: int | None
    unsaved: int = 0

    def __str__(self) -> str:
        within = "end" if self.batches is None else str(self.batches)
        passed = f"{self.epochs}+" if self.epochs else ""
        killed = f"!{self.unsaved}" if self.unsaved else ""
        return f"{passed}{within}{killed}"


class Launch(NamedTuple):
    """A start of the program in so many ranks of so many workers; without a stop it is the last."""

    ranks: int
    workers: int
    stop: Stop | None = None

    def __str__(self) -> str:
        stop = "" if self.stop is None else f":{self.stop}"
        return f"{self.ranks}x{self.workers}{stop}"


class Plan(NamedTuple):
    """`samples`: of the data set; `batch_size`: of a rank."""

    samples: int
    batch_size: int
    epochs: int
    launches: tuple[Launch, ...]

    def __str__(self) -> str:
        launches = " ".join(map(str, self.launches))
        return f"{self.samples}/{self.batch_size}/{self.epochs} {launches}"

    @property
    def global_batch(self) -> int:
        """Samples of a step of all ranks, for libraries that keep it: all numbers of ranks divide
        it."""
        return self.batch_size * math.lcm(*(launch.ranks for launch in self.launches))

    @property
    def column(self) -> str:
        """What changes between its launches."""
        if len({launch.ranks for launch in self.launches}) > 1:
            return "ranks"
        if len({launch.workers for launch in self.launches}) > 1:
            return "workers"
        return "same"

    def stops_inside(self, steps: int) -> bool:
        """Whether every checkpoint lies inside an epoch of so many steps, with some of its batches
        before it and some behind it; for plans that keep their ranks."""
        position = 0
        for launch in self.launches[:-1]:
            stop = launch.stop
            if stop is None or stop.batches is None:
                return False
            position = 0 if stop.epochs else position
            saved = max(0, stop.batches - stop.unsaved)
            position = min(position + saved, steps)
            if position in (0, steps):
                return False
        return True

    @property
    def size(self) -> tuple[int, ...]:
        """Shorter plans have a lower size."""
        stops = [launch.stop for launch in self.launches if launch.stop is not None]
        processes = sum(launch.ranks + launch.workers for launch in self.launches)
        unsaved = sum(stop.unsaved for stop in stops)
        read = sum(stop.batches or 0 for stop in stops)
        passed = sum(stop.epochs for stop in stops)
        sizes = (self.samples, passed, read, self.batch_size)
        return (len(stops), self.epochs, processes, unsaved, *sizes)

    @classmethod
    def parse(cls, text: str) -> Plan:
        """The plan of a line, such as "12/2/1 1x2:3 1x2". Raises ValueError for another one."""
        numbers, *launches = text.split()
        samples, batch_size, epochs = map(int, numbers.split("/"))
        plan = cls(samples, batch_size, epochs, tuple(map(_parsed, launches)))
        stops = [launch.stop for launch in plan.launches]
        if None in stops[:-1] or stops[-1:] != [None]:
            raise ValueError(f"all launches but the last have a stop: {text}")
        return plan


_LAUNCH = re.compile(r"(\d+)x(\d+)(?::(?:(\d+)\+)?(\d+|end)(?:!(\d+))?)?")


def _parsed(text: str) -> Launch:
    match = _LAUNCH.fullmatch(text)
    if match is None:
        raise ValueError(f"not ranks x workers : stop, as in 2x1:1+3!2: {text}")
    ranks, workers, passed, within, unsaved = match.groups()
    if within is None:
        return Launch(int(ranks), int(workers))
    batches = None if within == "end" else int(within)
    return Launch(int(ranks), int(workers), Stop(int(passed or 0), batches, int(unsaved or 0)))


def random_plans(
    count: int, seed: int = 0, columns: tuple[str, ...] = COLUMNS, most_processes: int = 8
) -> Iterator[Plan]:
    """Plans that are the same for the same seed, each column's in turn."""
    for number in range(count):
        draw = Random(f"{seed} {number}")
        yield _random_plan(draw, columns[number % len(columns)], most_processes)


def _random_plan(draw: Random, column: str, most_processes: int) -> Plan:
    samples = draw.choice(SIZES)
    batch_size = draw.choice(_BATCH_SIZES)
    epochs = draw.randint(1, 2)
    places = _places(draw, column, draw.choice((1, 1, 1, 2, 2, 3)), most_processes)

    launches = []
    epochs_left = epochs
    for ranks, workers in places[:-1]:
        stop = _stop(draw, -(-samples // (batch_size * ranks)), epochs_left)
        epochs_left -= stop.epochs + (stop.batches is None)
        launches.append(Launch(ranks, workers, stop))
    return Plan(samples, batch_size, epochs, (*launches, Launch(*places[-1])))


def _places(draw: Random, column: str, stops: int, most_processes: int) -> list[tuple[int, int]]:
    """Ranks and workers of each launch: in that column something changes at least once."""
    while True:
        first = _place(draw, most_processes)
        places = [first] * (stops + 1)
        if column == "same":
            return places
        if column == "workers":
            places = [(first[0], draw.choice(_WORKERS)) for _ in places]
        if column == "ranks":
            places = [(draw.choice(_RANKS), first[1]) for _ in places]
        changes = len(set(places)) > 1
        if changes and all(ranks * workers <= most_processes for ranks, workers in places):
            return places


def _place(draw: Random, most_processes: int) -> tuple[int, int]:
    while True:
        ranks, workers = draw.choice(_RANKS), draw.choice(_WORKERS)
        if ranks * workers <= most_processes:
            return ranks, workers


def _stop(draw: Random, steps: int, epochs_left: int) -> Stop:
    """A stop in an epoch of about so many steps: within, at its last batch, after, at once."""
    passed = draw.randint(0, max(0, epochs_left - 1))
    kind = draw.choice(("within", "within", "within", "last", "after", "at once", "kill", "kill"))
    if kind == "after" and passed + 1 < epochs_left:
        return Stop(passed, None)
    if kind == "at once":
        return Stop(passed, 0)
    if kind == "last":
        return Stop(passed, steps)
    batches = draw.randint(1, max(1, steps - 1))
    if kind == "kill":
        return Stop(passed, batches, draw.randint(1, min(3, batches)))
    return Stop(passed, batches)
