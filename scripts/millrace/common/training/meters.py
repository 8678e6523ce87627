"""Meters of a run: which time counts for its speed and for which phase, and sums of what was
trained on."""

from __future__ import annotations

import itertools
import math
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.profiler import record_function

from millrace.common.training.ranks import Exchange
from millrace.common.training.task import MicroBatch

# In the order of a step. `sync`: the ranks tell each other weights and flags, so it holds the wait
# for the slowest; gradients travel during `backward`. `idle`: the rest of a step (logging, the
# host's own work).
PHASES = ("data_wait", "copy", "forward", "backward", "sync", "optimiser", "idle")
# Not part of a step: left out of rates and shares.
APART = ("setup", "evaluate", "save")
# Before the names under which the loop shows steps and phases to a profiler (record_function).
MARK = "millrace: "
_FOLD_AT = 4096


class Clock:
    """Cuts time into laps: what passed since the last mark belongs to the name given at the next
    one.

    On a GPU the marks are CUDA events in the training stream, so that laps are the device's time
    and nothing waits for it: `data_wait` is how long the GPU stood still for data, not how long the
    host did. On the CPU it is the wall clock. Laps leave no gaps: the shares add up to 1.
    """

    def __init__(self, device_type: str = "cpu") -> None:
        self.device_type = device_type
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._marks: list[tuple[str, Any]] = [("", mark(device_type))]

    def lap(self, name: str) -> None:
        """End a lap named `name`, and begin the next one."""
        self._marks.append((name, mark(self.device_type)))
        if len(self._marks) > _FOLD_AT:
            self._fold()

    def restart(self) -> dict[str, float]:
        """Seconds by name since the last call; waits for the device. Forgets all laps but the last
        mark."""
        self._fold()
        seconds = dict(self._seconds)
        self._seconds = defaultdict(float)
        return seconds

    def _fold(self) -> None:
        if self.device_type == "cuda":
            self._marks[-1][1].synchronize()
        for begin, end in itertools.pairwise(self._marks):
            name, reached = end
            self._seconds[name] += seconds_between(begin[1], reached)
        self._marks = self._marks[-1:]


def mark(device_type: str) -> torch.cuda.Event | float:
    """Now: an event in the training stream on a GPU, else the host's perf_counter."""
    if device_type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def seconds_between(begin: torch.cuda.Event | float, end: torch.cuda.Event | float) -> float:
    """Seconds between two marks of one device, both of which it has reached."""
    if isinstance(begin, float) or isinstance(end, float):
        return end - begin
    return begin.elapsed_time(end) / 1000


def figures(per_rank: Sequence[Mapping[str, float]], laps: Mapping[str, float]) -> dict[str, Any]:
    """What a line of metrics.jsonl says: counts and their rates, padding and time shares (0 to 1),
    seconds.

    `per_rank` are the sums of each rank's counts, `laps` the seconds of one rank by phase; rates
    are those of the whole run. Tasks count what they like, by name. Two counts `x` and `padded_x`
    (seconds of audio, tokens, FLOPs; `x` of them useful) give the share of padding in that unit.
    """
    total: Counter[str] = Counter()
    for counts in per_rank:
        total.update(counts)
    sums = dict(sorted(total.items()))
    seconds = sum(spent for name, spent in laps.items() if name not in APART)

    def rate(amount: float) -> float:
        return amount / seconds if seconds else 0.0

    padding = {}
    for name, useful in sums.items():
        whole = sums.get(f"padded_{name}", 0.0)
        if whole > 0:
            padding[name] = 1.0 - useful / whole
    return {
        "seconds": seconds,
        "time_share": {name: rate(laps.get(name, 0.0)) for name in PHASES},
        "counts": sums,
        "per_second": {name: rate(count) for name, count in sums.items()},
        "padding": padding,
    }


def part(name: str) -> record_function:
    """A context that shows code inside of a forward pass to a profiler as a part of the model."""
    return record_function(f"{MARK}forward: {name}")


class Window:
    """Sums of losses, weights and counts, and the clock. The loss and counts that are tensors stay
    on the device: nothing waits."""

    def __init__(self, device: torch.device) -> None:
        self.clock = Clock(device.type)
        self.weight = 0.0
        self._counts: defaultdict[str, float | torch.Tensor] = defaultdict(float)
        self._loss = torch.zeros((), dtype=torch.float64, device=device)

    def add(self, loss: torch.Tensor, batch: MicroBatch) -> None:
        if batch.weight:
            self._loss += loss.detach().double() * batch.weight
        self.weight += batch.weight
        counts = {"samples": len(batch.ids), **batch.counts}
        for name, count in counts.items():
            if isinstance(count, torch.Tensor):
                # Not in place: counts of one name may be of shapes () and (1,).
                self._counts[name] = self._counts[name] + count.detach().double()
            else:
                self._counts[name] += float(count)

    def close(self, exchange: Exchange) -> dict[str, Any]:
        """The figures of all ranks (`loss` is None where nothing had weight); begins the next
        window."""
        laps = self.clock.restart()
        sums = {name: float(count) for name, count in self._counts.items()}
        of_ranks = exchange.gathered((float(self._loss), self.weight, sums))
        losses, weights, counts = zip(*of_ranks, strict=True)

        self._loss.zero_()
        self.weight = 0.0
        self._counts.clear()

        weight = math.fsum(weights)
        loss = math.fsum(losses) / weight if weight else None
        return {"loss": loss, "weight": weight, **figures(counts, laps)}

    def state_dict(self) -> dict[str, float]:
        """The loss so far. Counts and times belong to the process: rates are not those of two runs
        mixed."""
        return {"loss": float(self._loss), "weight": self.weight}

    def load(self, parts: Sequence[dict[str, float]]) -> None:
        self._loss.fill_(math.fsum(part["loss"] for part in parts))
        self.weight = math.fsum(part["weight"] for part in parts)
