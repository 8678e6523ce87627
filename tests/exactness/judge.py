"""What became of the samples: a plan's run against runs that nothing disturbed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tests.exactness.adapters import Adapter
from tests.exactness.plans import Launch, Plan
from tests.exactness.runs import Failure, Outcome, Read, run

VERDICTS = ("exact", "re-ordered", "lost", "repeated", "refused", "crashed", "no state")
"""The better ones first; a run that both lost and repeated samples counts as "lost"."""

EDGE_EPOCHS = 2
"""Undisturbed runs have so many, as random plans have at most."""


class Verdict(NamedTuple):
    """`lost`, `repeated`: samples over all epochs, beyond what undisturbed runs lose or repeat."""

    name: str
    lost: int = 0
    repeated: int = 0
    words: str = ""


class Undisturbed:
    """Runs without a stop, made once for each data set, batch size, ranks and workers."""

    def __init__(self, adapter: Adapter, data: Callable[[int], Path], seed: int = 0) -> None:
        self.adapter, self.data, self.seed = adapter, data, seed
        self._runs: dict[Plan, Outcome] = {}

    def like(self, plan: Plan, launch: Launch) -> Outcome:
        """The epochs of a plan in the ranks and workers of a launch, undisturbed."""
        epochs = max(plan.epochs, EDGE_EPOCHS)
        alone = plan._replace(epochs=epochs, launches=(launch._replace(stop=None),))
        key = (alone, plan.global_batch)
        if key not in self._runs:
            folder = self.data(plan.samples)
            self._runs[key] = run(self.adapter, folder, alone, self.seed, plan.global_batch)
        return self._runs[key]

    def steps(self, plan: Plan) -> int:
        """Steps of an undisturbed epoch in the first launch's ranks."""
        reads = self.like(plan, plan.launches[0]).reads
        return sum(read.rank == 0 and read.epoch == 0 for read in reads)


def verdict_of(plan: Plan, outcome: Outcome, undisturbed: Undisturbed) -> Verdict:
    """Judge the run of a plan.

    Samples count as lost or repeated by epoch: those that are missing, and those that came more
    than once. What undisturbed runs in the ranks and workers of the plan's launches leave out or
    repeat, as padding does, is not counted, nor what a library says to drop. The order is compared
    where the ranks stay the same.
    """
    alone = [undisturbed.like(plan, launch) for launch in plan.launches]
    failures = [run.failure for run in alone if run.failure is not None]
    if failures:
        raise UndisturbedError(f"{plan}: a run without stops failed: {failures[0]}")
    if outcome.failure is not None:
        return _of_failure(outcome.failure)

    lost = repeated = 0
    for epoch in range(plan.epochs):
        missing, extra = _counts(plan, outcome.reads, epoch)
        left_out, doubled = _allowed(plan, alone, epoch, undisturbed.adapter.ABOUT.drops_rest)
        lost += max(0, missing - left_out)
        repeated += max(0, extra - doubled)
    if lost or repeated:
        name = "lost" if lost else "repeated"
        return Verdict(name, lost, repeated, f"{lost} lost, {repeated} repeated")
    if plan.column != "ranks" and _order(outcome.reads, plan) != _order(alone[0].reads, plan):
        return Verdict("re-ordered")
    return Verdict("exact")


def _allowed(plan: Plan, alone: list[Outcome], epoch: int, drops_rest: bool) -> tuple[int, int]:
    """Samples of an epoch that may be missing, and that may come more than once."""
    padding = [_counts(plan, run.reads, epoch) for run in alone]
    left_out = sum(dropped for dropped, _ in padding)
    if drops_rest:
        # Whoever goes on leaves out the rest of the rest.
        workers = max(max(launch.workers, 1) for launch in plan.launches)
        left_out += (len(plan.launches) - 1) * (plan.global_batch * workers - 1)
    return left_out, sum(repeats for _, repeats in padding)


class UndisturbedError(Exception):
    """A loader that fails without a stop: that is the adapter's, or the machine's."""


def _counts(plan: Plan, reads: list[Read], epoch: int) -> tuple[int, int]:
    """Samples of an epoch that are missing, and how many came more than once or are none."""
    ids = Counter(number for read in reads if read.epoch == epoch for number in read.ids)
    known = sum(number in ids for number in range(plan.samples))
    return plan.samples - known, ids.total() - known


def _order(reads: list[Read], plan: Plan) -> dict[tuple[int, int], list[list[int]]]:
    """The batches of each rank and epoch in their order; empty ones are fillers."""
    batches = {}
    for read in reads:
        if read.epoch < plan.epochs and read.ids:
            batches.setdefault((read.rank, read.epoch), []).append(read.ids)
    return batches


_FROM_INSIDE = {
    "IndexError",
    "KeyError",
    "TypeError",
    "AttributeError",
    "UnboundLocalError",
    "StopIteration",
    "EOFError",
    "died",
    "hang",
}


def _of_failure(failure: Failure) -> Verdict:
    """An error of the library's own is a refusal; one that its code ran into is a crash."""
    words = f"{failure.kind}: {failure.text} ({failure.frame})"
    is_refusal = failure.text and failure.kind not in _FROM_INSIDE
    return Verdict("refused" if is_refusal else "crashed", words=words)
