"""The order of epochs, and how a loader ends."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

from millrace.audit.checks.randomness import EXAMPLES, NEED_ID, plain, samples
from millrace.audit.checks.registry import Evidence, Finding, Ranks, Seen, check
from millrace.audit.checks.shares import order_of

ENDINGS = {
    "raised": "Mend what it raises at the place named",
    "hung": "See where it stands: locks, threads and files opened before the fork belong into the worker",
    "died": "Bus error: enlarge /dev/shm (--shm-size); Killed: too much memory",
    "memory": "Read samples when they are asked for; --memory-mb is the limit",
}
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
def refused_arguments(evidence: Evidence) -> Iterable[Finding]:
    """Arguments that torch refuses together, in its own words."""
    error = evidence["look"].error
    for entry, words, fix in REFUSED:
        if words in error.get("text", ""):
            yield Finding(
                entry, "fail", f"torch: {error['text']}", {"where": error.get("where")}, fix
            )
            return


@check("DP14", probes=("epochs", "set_epoch", "loop", "source"))
def order_of_epochs(epochs: Ranks, after: Ranks, loop: Ranks, source: Seen) -> Iterable[Finding]:
    """Epochs 0 and 1 come in different orders, by the loader alone or after set_epoch."""
    orders = [[order_of(notes, source["stable"]) for notes in rank] for rank in plain(epochs)]
    one, other = (orders[0] * 2)[:2]
    say = partial(
        Finding, "DP14", evidence={"epoch 0": one[:EXAMPLES], "epoch 1": other[:EXAMPLES]}
    )
    parts, flags, by = after[0]["parts"], after[0]["flags"], source["shuffled_by"]
    call = f"{('loader.' + parts[0]).removesuffix('.loader')}.set_epoch(epoch)" if parts else ""
    calls = loop[0]["calls"]
    ascends = bool(one) and isinstance(one[0], int) and one == sorted(one)
    if not one or len(orders[0]) < 2:
        yield say("not decidable", "no two orders to compare", needs=f"--epochs 2, and {NEED_ID}")
    elif any(map(_unheard, after)):
        cause = "set_epoch on the dataset changes what the main process reads, but persistent workers miss it"
        fix = "persistent_workers=False, or the epoch as torch.zeros((), dtype=torch.int64).share_memory_()"
        yield say("fail", cause, fix=fix)
    elif not all(_same(*each[:2]) for each in orders):
        yield say("pass", "epochs 0 and 1 come in different orders")
    elif parts and not all(
        _same(*(order_of(e, source["stable"]) for e in rank["own"])) for rank in after
    ):
        cause = "the order changes only after set_epoch"
        if calls is None:
            needs = f"--loop module:function; it must call {call} (Lightning and Accelerate do)"
            yield say("not decidable", cause, needs=needs)
        elif calls:
            yield say("pass", f"the loop calls set_epoch: {calls[:4]}")
        else:
            yield say(
                "fail",
                f"{cause}, which the loop does not call",
                fix=f"Call {call} before each epoch",
            )
    elif not ascends and source["iterable"] and source["reordered"]:
        cause = "without workers each pass has its own order; workers begin every epoch with the same copy"
        yield say(
            "fail",
            cause,
            fix="An order by (seed, epoch) with set_epoch; or persistent_workers=True",
        )
    elif not ascends and (any(flags.values()) or (by and not flags)):
        cause = f"epochs 0 and 1 come in one order, though {', '.join(by or flags)} shuffles"
        cause += f"; {call} does not change it" if parts else ""
        yield say(
            "fail", cause, fix="Seed the order with seed + epoch, which set_epoch(epoch) sets"
        )
    else:
        order = "indices ascend" if ascends else "the order is fixed"
        yield say("not applicable", f"no shuffle: {order} in both epochs (training: shuffle=True)")


def _same(one: list[Any], other: list[Any]) -> bool:
    return all(a == b for a, b in zip(one, other, strict=False))


def _unheard(rank: Seen) -> bool:
    """Whether the epoch decides what the main process reads, but not what persistent workers
    read."""
    if "main" not in rank:
        return False
    own, main = (list(map(_content, rank[name])) for name in ("own", "main"))
    return own[0] == own[1] and main[0] == main[2] != main[1]


def _content(notes: list[Seen]) -> list[Any]:
    """What the batches of an epoch hold; where indices are drawn, in whatever order."""
    batches = [[note["indices"], [each[""] for each in samples(note)]] for note in notes]
    return sorted(batches, key=str) if notes and notes[0]["indices"] else batches


@check("end")
def ends(evidence: Evidence) -> Iterable[Finding]:
    """What raised, hung, died or took too much memory, with its place."""
    for name in [each for each in ("look", "epochs") if each in evidence]:
        result = evidence[name]
        if name == "look" and result.status == "late":
            cause = f"no batch came: {result.error['text']}"
            yield Finding("end", "not decidable", cause, needs="a longer --timeout, or less data")
        if result.status in ENDINGS:
            facts = {key: value for key, value in result.error.items() if value}
            cause = f"the loader {result.status}: {result.error.get('text', '')}"
            yield Finding("end", "fail", cause, facts, ENDINGS[result.status])


@check("end", probes=("epochs",))
def endless(epochs: Ranks) -> Iterable[Finding]:
    """Epochs that were read to their end, unless they have none."""
    cause, facts = "", {}
    for part in (part for rank in epochs for part in rank["plain"] if not part["ended"]):
        facts = {"batches": len(part["notes"]), "len(loader)": part["length"]}
        if part["length"] and facts["batches"] > 2 * part["length"]:
            cause = f"it does not end: {facts['batches']} batches, though len(loader) is {part['length']}"
            yield Finding(
                "end", "fail", cause, facts, "Let the sampler end after len(sampler) indices"
            )
            return
        cause = (
            cause if part["length"] else f"no end in {facts['batches']} batches: an endless stream"
        )
    yield Finding("end", "pass", cause, facts)
