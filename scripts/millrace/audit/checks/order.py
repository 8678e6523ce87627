"""DP14 and end, judged: the order of epochs and who must tell it, arguments that torch refuses
together, and a loader that hangs, raises, dies or never ends."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, NamedTuple

from millrace.audit.checks.findings import (
    LONGER,
    Evidence,
    Finding,
    Seen,
    check,
    failed,
    inapplicable,
    passed,
    undecided,
)
from millrace.audit.checks.randomness import EXAMPLES, NEED_END, NEED_ID
from millrace.audit.checks.records import Batch, Epoch
from millrace.audit.checks.shares import Dataset, draws_of, flat

ENDINGS = {
    "raised": "Mend what it raises at the place named",
    "hung": (
        "See where it stands: locks, threads and files opened before the fork belong into the"
        " worker"
    ),
    "died": "Bus error: enlarge /dev/shm (--shm-size); Killed: too much memory",
    "memory": "Read samples when they are asked for; --memory-mb is the limit",
}

TELLING = 8  # draws of an epoch: other orders of as many hardly ever begin alike

# What torch refuses in arguments that contradict each other: entry, its words, and the fix.
REFUSED = (
    (
        "DP14",
        "mutually exclusive",
        "sampler= without shuffle; batch_sampler= without batch_size, drop_last",
    ),
    ("DP14", "expected unspecified shuffle", "Shuffle inside the IterableDataset"),
    ("DP2", "expected unspecified", "Share out inside the IterableDataset's __iter__"),
)


@check("DP14")
def refused_arguments(evidence: Evidence) -> list[Finding]:
    """Arguments that torch refuses together, in its own words."""
    error = evidence["look"].error
    for entry, words, fix in REFUSED:
        if words in error.get("text", ""):
            cause = f"torch: {error['text']}"
            return [Finding(entry, "fail", cause, {"where": error.get("where")}, fix)]
    return []


Order = list[list[Any]]  # of an epoch, as `draws_of` tells it
Orders = list[Order]  # of epochs


class Told(NamedTuple):
    """One rank's epochs after set_epoch."""

    parts: list[str]  # what has set_epoch
    flags: dict[str, bool]  # attributes `shuffle` or `_shuffle` of samplers and dataset
    own: list[list[Batch]]  # after set_epoch(0), set_epoch(1) and so on
    main: list[list[Batch]]  # without workers after 0, 1, 0, if persistent ones may miss it
    numbers: list[str]  # attributes of a stream that may be the number of its epoch

    @property
    def call(self) -> str:
        place = f"loader.{self.parts[0]}".removesuffix(".loader")
        return f"{place}.set_epoch(epoch)"

    def is_missed(self) -> bool:
        """Whether the epoch decides what the main process reads, but not what persistent workers
        read."""
        if not self.main:
            return False
        own = list(map(_content, self.own))
        main = list(map(_content, self.main))
        is_heard = not _same(main[0], main[1]) and _same(main[0], main[2])
        return is_heard and _same(own[0], own[1])


@check("DP14", "epochs", "set_epoch", "loop", "source")
def order_of_epochs(
    epochs: list[list[Epoch]], told: list[Told], loop: Seen, dataset: Dataset
) -> Finding:
    """Epochs 0 and 1 come in different orders, by the loader alone or after set_epoch."""

    def orders_of(epochs: Iterable[list[Batch]]) -> Orders:
        return [draws_of(batches, dataset.stable) for batches in epochs]

    is_whole = all(rank[0].ended for rank in epochs)
    if len(epochs[0]) == 1 and not is_whole:
        return undecided("the time was over before epoch 1", f"{LONGER}, and --epochs 2")
    plain = [orders_of(epoch.batches for epoch in rank[:2]) for rank in epochs]
    after = [orders_of(rank.own) for rank in told]
    finding = _judged(plain, after, told, dataset, loop)
    if finding.verdict == "fail":
        finding = _unless_begun_once(finding, epochs, dataset, loop)
    shown = {}
    for epoch, order in enumerate(plain[0]):
        shown[f"epoch {epoch}"] = flat(order)[:EXAMPLES]
    return replace(finding, evidence=shown)


def _unless_begun_once(
    failure: Finding, epochs: list[list[Epoch]], dataset: Dataset, loop: Seen
) -> Finding:
    """The failure of a loader whose passes are alike, unless training may be one of them."""
    first = epochs[0][0]
    # What has no end is begun once; nobody sees its second epoch.
    read = [epoch for rank in epochs for epoch in rank]
    has_end = any(epoch.ended or (epoch.length and not _outlasts(epoch)) for epoch in read)
    if not has_end:
        cause = f"no end in {len(first.batches)} batches: {failure.cause}"
        return undecided(cause, NEED_END)
    if len(loop["orders"]) > 1 or not _is_of_steps(first, dataset):
        return failure
    cause = "a pass draws each sample several times, and every pass has one order"
    if loop["orders"] and loop["ended"]:
        return passed(f"{cause}; the loop begins one")
    return undecided(cause, "--loop module:function, that ends in time and begins all its passes")


def _is_of_steps(epoch: Epoch, dataset: Dataset) -> bool:
    """Whether one pass is all that is trained: it draws the rows of the data set several times."""
    if not dataset.rows:
        return False
    sizes = [len(batch.indices or ()) for batch in epoch.batches]
    draws = (epoch.length or 0) * max(sizes, default=0)
    return draws >= 2 * dataset.rows


def _judged(
    plain: list[Orders],
    after: list[Orders],
    told: list[Told],
    dataset: Dataset,
    loop: Seen,
) -> Finding:
    """Of each rank the orders of epochs: `plain`, by the loader alone, and `after` set_epoch."""
    first = flat(plain[0][0])
    if not first or len(plain[0]) < 2 or not flat(plain[0][1]):
        needs = f"--epochs 2, both with batches, and {NEED_ID}"
        return undecided("no two orders to compare", needs)
    if any(rank.is_missed() for rank in told):
        cause = "set_epoch on the dataset changes what the main process reads, but persistent "
        cause += "workers miss it"
        fix = "persistent_workers=False, or the epoch as "
        fix += "torch.zeros((), dtype=torch.int64).share_memory_()"
        return failed(cause, fix=fix)
    if any(map(_differ, plain)):
        return passed("epochs 0 and 1 come in different orders")
    if any(map(_differ, after)):
        return _changes_when_told(told[0].call, loop)
    if _differ(loop["orders"]):
        return passed("the loop reads each epoch in another order")
    return _one_order(first, dataset, told[0], loop)


def _changes_when_told(call: str, loop: Seen) -> Finding:
    """The finding of an order that follows set_epoch, which the user's loop may call."""
    cause = "the order changes only after set_epoch"
    calls = loop["calls"]
    if calls is None:
        needs = f"--loop module:function; it must call {call} (Lightning and Accelerate do)"
        return undecided(cause, needs)
    # Of a stream nobody knows in which orders the loop has read it; a few are alike by chance.
    drawn = [len(flat(order)) for order in loop["orders"]]
    is_seen = len(drawn) > 1 and min(drawn) >= TELLING
    if _differ(loop["orders"]) or (calls and not is_seen):
        return passed(f"the loop calls set_epoch: {calls[:4]}")
    cause += f", and the loop calls {calls[:4]}" if calls else ", which the loop does not call"
    return failed(cause, fix=f"Call {call} before each epoch")


def _told_otherwise(told: Told, loop: Seen) -> Finding | None:
    """A finding if a loop may tell a stream its epoch by a method of its own, such as OLMo's
    `reshuffle`: nobody sees in which orders it then comes."""
    if told.parts or not told.numbers:
        return None
    cause = f"the order is the same unless the loop sets {told.numbers[0]}"
    numbers = loop["numbers"]
    if len(numbers) < 2:
        return undecided(cause, "--loop module:function, that begins two epochs")
    if all(number == numbers[0] for number in numbers):
        return None
    return undecided(f"{cause}, as it does", "a set_epoch of the dataset that does the same")


def _one_order(first: list[Any], dataset: Dataset, told: Told, loop: Seen) -> Finding:
    """All epochs have one order: a bug if it is shuffled, or meant so."""
    if isinstance(first[0], int) and first == sorted(first):
        return inapplicable("no shuffle: indices ascend in both epochs (training: shuffle=True)")
    if dataset.iterable and dataset.reordered:
        cause = "without workers each pass has its own order; workers begin every epoch with the "
        cause += "same copy"
        fix = "An order by (seed, epoch) with set_epoch; or persistent_workers=True"
        return failed(cause, fix=fix)
    flags = told.flags
    if any(flags.values()) or (dataset.shuffled_by and not flags):
        cause = "epochs 0 and 1 come in one order, though "
        cause += f"{', '.join(dataset.shuffled_by or flags)} shuffles"
        if told.parts:
            cause += f"; {told.call} does not change it"
        otherwise = _told_otherwise(told, loop)
        if otherwise:
            return otherwise
        return failed(cause, fix="Seed the order with seed + epoch, which set_epoch(epoch) sets")
    return inapplicable("no shuffle: the order is fixed in both epochs (training: shuffle=True)")


def _differ(orders: Orders) -> bool:
    """Whether an epoch comes in another order than the first, as far as both were read. Of many
    batches their order counts, not that of the rows in one."""
    if min(map(len, orders), default=0) >= TELLING:
        orders = [[sorted(batch, key=str) for batch in order] for order in orders]
    pairs = [zip(orders[0], later, strict=False) for later in orders[1:]]
    return any(one != other for pair in pairs for one, other in pair)


Content = dict[Any, Any]  # what an epoch gave: digests of samples by their rows


def _content(batches: list[Batch]) -> Content:
    """What the batches of an epoch hold, by the rows that were drawn, in whatever order; of a
    stream by their turn."""
    content: Content = {}
    for turn, batch in enumerate(batches):
        samples = [sample[""] for sample in batch.samples]
        if batch.indices is None:
            content[turn] = samples
        elif len(batch.indices) == len(samples):
            content.update(zip(batch.indices, samples, strict=True))
        else:
            content[str(batch.indices)] = samples
    return content


def _same(one: Content, other: Content) -> bool:
    """Whether the rows that both epochs have are the same in both."""
    shared = one.keys() & other.keys()
    is_as_long = len(one) == len(other)
    return bool(shared) and is_as_long and all(one[row] == other[row] for row in shared)


@check("end")
def ends(evidence: Evidence) -> Iterable[Finding]:
    """What raised, hung, died or took too much memory, with its place."""
    for name in [each for each in ("look", "epochs") if each in evidence]:
        result = evidence[name]
        if name == "look" and result.status == "late":
            yield undecided(f"no batch came: {result.error['text']}", f"{LONGER}, or less data")
        if result.status in ENDINGS:
            facts = {key: value for key, value in result.error.items() if value}
            cause = f"the loader {result.status}: {result.error.get('text', '')}"
            yield failed(cause, facts, ENDINGS[result.status])


@check("end", "epochs", "loop")
def endless(ranks: list[list[Epoch]], loop: Seen) -> Finding:
    """Epochs that were read to their end, unless they have none."""
    cause = ""
    unended = [epoch for rank in ranks for epoch in rank if not epoch.ended]
    for epoch in unended:
        count = len(epoch.batches)
        if _outlasts(epoch):
            cause = f"no end in {count} batches, though len(loader) is {epoch.length}"
            return _stopped_by_loop(cause, loop)
        if not epoch.length:
            cause = f"no end in {count} batches: an endless stream"
    return passed(cause)


def _outlasts(epoch: Epoch) -> bool:
    """Whether far more batches came than len(loader) says, and still no end."""
    if epoch.ended or not epoch.length:
        return False
    return len(epoch.batches) > 2 * epoch.length


def _stopped_by_loop(cause: str, loop: Seen) -> Finding:
    """The finding of a sampler that goes on for ever, as a loop that counts its steps may wish it
    (mmengine's InfiniteSampler)."""
    if loop["calls"] is not None and loop["ended"]:
        return passed(f"{cause}; the loop ends by itself")
    needs = "--loop module:function, that ends by itself; or a sampler that ends after its length"
    return undecided(cause, needs)
