"""resume, judged: what a loader goes on with after a restart, in mid-epoch and from the state of an
epoch that has ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from millrace.audit.checks.findings import (
    LONGER,
    Finding,
    Ranks,
    Seen,
    check,
    failed,
    inapplicable,
    passed,
    undecided,
)
from millrace.audit.checks.randomness import EXAMPLES, NEED_ID
from millrace.audit.checks.records import Batch, parse
from millrace.audit.checks.shares import Dataset, draws_of, flat
from millrace.common.errors import counted

Batches = list[list[str]]  # names of samples, a list for each batch

NO_STATE = "nothing has a state, unless a dataset of which workers hold copies: StatefulDataLoader"
SAVE = (
    "Save the epoch, the batches that the loop has seen (workers draw more), and the generator's"
    " state from before the order was drawn"
)
NEW_EPOCH = "Set the position to 0 when an epoch ends, before the state is saved"


class Way(NamedTuple):
    """What came after one restart."""

    told: bool  # set_epoch was called after it
    passes: list[Batches]
    ended: list[bool]  # of each pass: False if the time was over before its end
    error: str  # what the restart raised; "" if nothing

    @classmethod
    def of(cls, seen: Seen, stable: list[str]) -> Way:
        passes = [_named(notes, stable) for notes in seen["passes"]]
        return cls(seen["told"], passes, seen["ended"], seen["error"])

    @property
    def is_unread(self) -> bool:
        """Whether the time was over before a batch came."""
        return not self.error and not self.ended[0] and not any(self.came)

    @property
    def came(self) -> Batches:
        if self.passes:
            return self.passes[0]
        return []


class Restart(NamedTuple):
    """One rank's epochs 0 and 1, and what came after restarts."""

    how: str  # the part that has the state
    at: int  # batches of epoch 1 that came before the state was saved
    run: list[Batches]  # epochs 0 and 1
    ended: list[bool]  # of both: read to the end
    ways: list[Way]
    next: Way | None  # from the state that was saved after epoch 0

    @classmethod
    def of(cls, seen: Seen, stable: list[str]) -> Restart:
        return cls(
            how=seen["how"],
            at=seen["at"],
            run=[_named(notes, stable) for notes in seen["run"]],
            ended=seen["ended"],
            ways=[Way.of(way, stable) for way in seen["ways"]],
            next=Way.of(seen["next"], stable) if seen["next"] else None,
        )

    @property
    def left(self) -> Batches:
        """What must come after a restart in mid-epoch."""
        return self.run[1][self.at :]

    def is_right(self, way: Way) -> bool:
        """Whether a restart in mid-epoch went on with what was left, as far as both were read."""
        if way.error or not way.ended:
            return False
        if self.ended[1] and way.ended[0]:
            return way.came == self.left
        shorter = min(len(way.came), len(self.left))
        return shorter > 0 and way.came[:shorter] == self.left[:shorter]


def _named(notes: list[Seen], stable: list[str]) -> Batches:
    """The names of samples: their indices, or what identifies them."""
    batches = parse(list[Batch], notes)
    return [list(map(str, flat(draws_of([batch], stable)))) for batch in batches]


@check("resume", "resume", "source", "loop")
def restored(resume: Ranks, dataset: Dataset, loop: Seen) -> Iterable[Finding]:
    """After a restart in mid-epoch come the samples that were left, in their order; after one
    between epochs the next epoch."""
    if any(not seen["how"] for seen in resume):
        yield inapplicable(NO_STATE)
        return
    restarts = [Restart.of(seen, dataset.stable) for seen in resume]
    judged = [_judged(rank, restart, loop["calls"]) for rank, restart in enumerate(restarts)]
    judged += [_next_epoch(rank, restart) for rank, restart in enumerate(restarts)]
    findings = [finding for finding in judged if finding]
    if findings:
        yield from findings
        return
    first = restarts[0]
    cause = f"by {first.how}, after {counted(first.at, 'batch')} of epoch 1"
    cause += " and after epoch 0" if first.next else ""
    yield passed(cause)


def _judged(rank: int, restart: Restart, calls: list | None) -> Finding | None:
    """What is wrong with a restart in mid-epoch; `calls`: of set_epoch by the user's loop, if it is
    known."""
    if restart.ways and all(way.error for way in restart.ways):
        return _wrong(rank, restart, restart.ways[0])
    is_right = any(map(restart.is_right, restart.ways))
    undecidable = _undecidable(restart, is_right)
    if undecidable:
        return undecidable

    wrong = [way for way in restart.ways if not restart.is_right(way) and not way.is_unread]
    if is_right and calls is not None:  # the loop decides which of the ways is taken
        wrong = [way for way in wrong if way.told == bool(calls)]
    if not wrong:
        return None
    way = wrong[-1]
    if calls is not None or not is_right:
        return _wrong(rank, restart, way)
    word = "not called" if way.told else "called"
    cause = f"restored in mid-epoch 1 by {restart.how}: right only if set_epoch is {word} after "
    cause += "the restart"
    needs = "--loop module:function, which shows whether it calls set_epoch before each epoch"
    return undecided(cause, needs, {"rank": rank})


def _undecidable(restart: Restart, is_right: bool) -> Finding | None:
    """Why nothing can be said of restarts in mid-epoch; None if something can. `is_right`: of one
    of them."""
    if not restart.ways:
        cause = f"epoch 1 was not read up to batch {restart.at}, where its state is saved"
        is_short = restart.ended[1] and len(restart.run[1]) < restart.at
        return undecided(cause, "an epoch 1 as long as epoch 0" if is_short else LONGER)
    if not any(restart.left):
        return undecided("nothing is left that can be known again", NEED_ID)
    if not is_right and any(way.is_unread for way in restart.ways):
        return undecided("the time was over before a batch came after a restart", LONGER)
    return None


def _wrong(rank: int, restart: Restart, way: Way) -> Finding:
    """The finding where a restart raised, or other samples came than those that were left, or in
    another order."""
    cause = f"restored in mid-epoch 1 by {restart.how}: "
    facts: Seen = {"rank": rank, "after batches": restart.at}
    if way.error:
        return failed(f"{cause}it raises {way.error}", facts, SAVE)

    left = restart.left
    came = way.came
    before = Counter(flat(restart.run[1][: restart.at]))
    rest = Counter(flat(left))
    new = Counter(flat(came))
    facts |= {"expected": left[0], "came": came[0] if came else []}
    differences = []
    # What did not come before the time was over may come later.
    if way.ended[0]:
        skipped = rest - new
    else:
        skipped = Counter[str]()
    for word, names in (("replayed", (new & before) - rest), ("skipped", skipped)):
        if names:
            differences.append(f"{counted(len(names), 'sample')} {word}")
            facts[word] = list(names)[:EXAMPLES]
    cause += " and ".join(differences) or "the rest in another order"
    fix = SAVE
    if not way.told and len(restart.ways) > 1:
        cause += "; set_epoch was not called after it"
        fix = "Save the epoch in the state, or call set_epoch(epoch) after load_state_dict"
    return failed(cause, facts, fix)


def _next_epoch(rank: int, restart: Restart) -> Finding | None:
    """What is wrong with the epoch after a restart from the state of one that has ended."""
    way = restart.next
    if way is None:
        return None
    cause = f"restored by {restart.how} after the last batch of epoch 0: "
    if way.error:
        return failed(f"{cause}it raises {way.error}", {"rank": rank}, SAVE)

    # Without set_epoch the rest of epoch 0 may come first, which is empty.
    number = 0
    if len(way.passes) > 1 and not way.came:
        number = 1
    if not way.ended[number]:  # the time was over
        return None
    due = restart.run[0]
    came = way.passes[number]
    if restart.ended[1]:
        due = min(restart.run, key=lambda epoch: len(flat(epoch)))
    missing = len(flat(due)) - len(flat(came))
    # An order of its own may fill batches otherwise: the last one may be missing.
    largest = max(map(len, due), default=0)
    is_whole = any(came) and missing <= largest
    if is_whole or not any(due):
        return None
    cause += f"the next epoch has {len(flat(came))} of {len(flat(due))} samples"
    facts = {
        "rank": rank,
        "expected": due[0],
        "came": came[0] if came else [],
    }
    return failed(cause, facts, NEW_EPOCH)
