"""The order of epochs, what a restored state goes on with, and how a loader ends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import partial
from typing import Any

from millrace.audit.checks.randomness import EXAMPLES, NEED_ID, content_key, plain, samples
from millrace.audit.checks.registry import Evidence, Finding, Ranks, Seen, check

ENDINGS = {
    "raised": "Mend what it raises at the place named",
    "hung": "See where it stands: locks, threads and files opened before the fork belong into the worker",
    "died": "Bus error: enlarge /dev/shm (--shm-size); Killed: too much memory",
    "memory": "Read samples when they are asked for; --memory-mb is the limit",
}
REFUSED = (
    ("DP14", "mutually exclusive", "sampler= without shuffle; batch_sampler= without batch_size, drop_last"),
    ("DP14", "expected unspecified shuffle", "Shuffle inside the IterableDataset"),
    ("DP2", "expected unspecified", "Share out inside the IterableDataset's __iter__"),
)


@check("DP14")
def refused_arguments(evidence: Evidence) -> Iterable[Finding]:
    """Arguments that torch refuses together, in its own words."""
    error = evidence["look"].error
    for entry, words, fix in REFUSED:
        if words in error.get("text", ""):
            yield Finding(entry, "fail", f"torch: {error['text']}", {"where": error.get("where")}, fix)
            return


@check("DP14", probes=("epochs", "set_epoch", "loop", "source"))
def order_of_epochs(epochs: Ranks, after: Ranks, loop: Ranks, source: Seen) -> Iterable[Finding]:
    """Epochs 0 and 1 come in different orders, by the loader alone or after set_epoch."""
    orders = [[_order(notes, source["stable"]) for notes in rank] for rank in plain(epochs)]
    one, other = (orders[0] * 2)[:2]
    say = partial(Finding, "DP14", evidence={"epoch 0": one[:EXAMPLES], "epoch 1": other[:EXAMPLES]})
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
    elif parts and not all(_same(*(_order(e, source["stable"]) for e in rank["own"])) for rank in after):
        cause = "the order changes only after set_epoch"
        if calls is None:
            needs = f"--loop module:function; it must call {call} (Lightning and Accelerate do)"
            yield say("not decidable", cause, needs=needs)
        elif calls:
            yield say("pass", f"the loop calls set_epoch: {calls[:4]}")
        else:
            yield say("fail", f"{cause}, which the loop does not call", fix=f"Call {call} before each epoch")
    elif not ascends and source["iterable"] and source["reordered"]:
        cause = "without workers each pass has its own order; workers begin every epoch with the same copy"
        yield say("fail", cause, fix="An order by (seed, epoch) with set_epoch; or persistent_workers=True")
    elif not ascends and (any(flags.values()) or (by and not flags)):
        cause = f"epochs 0 and 1 come in one order, though {', '.join(by or flags)} shuffles"
        cause += f"; {call} does not change it" if parts else ""
        yield say("fail", cause, fix="Seed the order with seed + epoch, which set_epoch(epoch) sets")
    else:
        order = "indices ascend" if ascends else "the order is fixed"
        yield say("not applicable", f"no shuffle: {order} in both epochs (training: shuffle=True)")


def _order(notes: list[Seen], stable: list[str]) -> list[Any]:
    """Indices in order, or else what identifies the samples."""
    if notes and all(note.get("indices") is not None for note in notes):
        return [index for note in notes for index in note["indices"]]
    return [content_key(sample, stable) for note in notes for sample in samples(note)] if stable else []


def _same(one: list[Any], other: list[Any]) -> bool:
    return all(a == b for a, b in zip(one, other, strict=False))


def _unheard(rank: Seen) -> bool:
    """Whether the epoch decides what the main process reads, but not what persistent workers read."""
    if "main" not in rank:
        return False
    own, main = (list(map(_content, rank[name])) for name in ("own", "main"))
    return own[0] == own[1] and main[0] == main[2] != main[1]


def _content(notes: list[Seen]) -> list[Any]:
    """What the batches of an epoch hold; where indices are drawn, in whatever order."""
    batches = [[note["indices"], [each[""] for each in samples(note)]] for note in notes]
    return sorted(batches, key=str) if notes and notes[0]["indices"] else batches


@check("resume", probes=("resume", "source", "epochs"))
def restored(resume: Ranks, source: Seen, epochs: Ranks) -> Iterable[Finding]:
    """After a restart in mid-epoch come the samples that were left, in their order."""
    stable, names = source["stable"], {}
    for note in (note for rank in plain(epochs) for notes in rank for note in notes):
        known = zip(samples(note), note.get("indices") or (), strict=False)
        names |= {content_key(sample, stable): str(index) for sample, index in known if stable}

    def batches(notes: list[Seen]) -> list[list[str]]:
        return [[names.get(str(key), str(key)) for key in _order([note], stable)] for note in notes]

    for rank, seen in enumerate(resume):
        if not seen["how"]:
            cause = "nothing has a state, unless a dataset of which workers hold copies: StatefulDataLoader"
            yield Finding("resume", "not applicable", cause)
            return
        at, orders, ways = seen["at"], list(map(batches, seen["run"])), list(map(batches, seen["ways"]))
        left = orders[1][at:]
        if not any(left):
            yield Finding("resume", "not decidable", "nothing is left that can be known again", needs=NEED_ID)
            return
        if any(
            came == left if whole else came and _same(came, left)
            for came, whole in zip(ways, seen["whole"], strict=True)
        ):
            continue
        if not any(ways[-1]) and not seen["whole"][-1]:
            cause = "the time was over before a batch came after a restart"
            yield Finding("resume", "not decidable", cause, needs="a longer --timeout")
            return
        came = ways[-1]
        before, rest, new = (Counter(i for ids in each for i in ids) for each in (orders[1][:at], left, came))
        lists = {"replayed": list((new & before) - rest), "skipped": list(rest - new)}
        counts = " and ".join(f"{len(ids)} samples {word}" for word, ids in lists.items() if ids)
        cause = f"restored in mid-epoch 1 by {seen['how']}: {counts or 'the rest in another order'}"
        fix = "Save the epoch, the batches seen, and the generator's state from before the order was drawn"
        if came and came != left and _same(came, orders[0][at:]):
            cause += "; it is the order of epoch 0"
        elif came and seen["ahead"] and came == left[-len(came) :]:
            cause += f"; the sampler was {len(left) - len(came)} batches ahead, which workers held"
            fix = "Count the batches that the loop has seen, not those drawn; or StatefulDataLoader"
        facts = {"rank": rank, "after batches": at, "expected": left[0], "came": (came or [[]])[0]}
        facts |= {word: ids[:EXAMPLES] for word, ids in lists.items()}
        yield Finding("resume", "fail", cause, facts, fix)
        return
    yield Finding("resume", "pass", f"by {seen['how']}, after {at} batches of epoch 1")


@check("end")
def ends(evidence: Evidence) -> Iterable[Finding]:
    """What raised, hung, died or took too much memory, with its place."""
    for name in [each for each in ("look", "epochs") if each in evidence]:
        result = evidence[name]
        # Slow samples, and workers that import for long, are no hang.
        slow = evidence["look"].seconds * 4 > result.seconds or not result.error.get("where")
        if result.status in ENDINGS and not (name == "epochs" and result.status == "hung" and slow):
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
            yield Finding("end", "fail", cause, facts, "Let the sampler end after len(sampler) indices")
            return
        cause = cause if part["length"] else f"no end in {facts['batches']} batches: an endless stream"
    yield Finding("end", "pass", cause, facts)
