"""DP1 to DP3 and edges, judged: randomness that repeats, samples that come twice or never or are
dropped, ranks of unequal steps."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import replace
from itertools import combinations

from millrace.audit.checks import shares
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
from millrace.audit.checks.records import Batch, Epoch
from millrace.audit.checks.shares import Dataset, Shares
from millrace.audit.runner.probes import COLLATE
from millrace.common.errors import counted

EXAMPLES = 8  # ids that a finding names
FEWEST = 8  # batches of an epoch that was not read to its end
AXES = {"workers": 2, "epochs": 1, "ranks": 0}  # of a place: rank, epoch, worker
GLOBALS = {
    "torch": "torch's global state",
    "python": "Python's random",
    "numpy": "NumPy's global state",
}
NEED_END = "a stream that ends: fewer shards, by --arg"
NEED_ID = (
    "a field that is the same whenever a sample is read: yield an id; of batches that a dataset"
    " makes: a method sample_ids(batch) of the loader"
)
NEED_SAMPLES = "a dataset that gives samples, of which the DataLoader makes batches"
NEED_DRAWING = "whether samples are drawn with replacement"
SEEDED = {
    "workers": (
        "worker_init_fn: no constant in torch.manual_seed or np.random.seed (torch seeds each"
        " worker)"
    ),
    "epochs": (
        "no constant seed before an epoch, in worker_init_fn or with a first sample: seed NumPy and"
        " Python there by torch.initial_seed() % 2**32"
    ),
    "ranks": "torch.manual_seed(seed + rank) at the start, and the same for NumPy and random",
}
SHARE_OUT = (
    "share out once: over ranks in the dataset or its sampler, over workers in __iter__; let each"
    " give its share to the end, without a batch that is held back or the remainder of a division"
)
ONE_SEED = (
    "accelerate.utils.set_seed(seed) with one seed on all ranks, before the loader is made: all"
    " must draw the batches alike that accelerate shares out"
)
OWN = (
    "draw from torch.rand instead, or in worker_init_fn get_worker_info().dataset.rng = "
    "np.random.default_rng(torch.initial_seed()); ranks: torch.manual_seed(seed + rank)"
)
OF_COLLATE = (
    "draw from torch.rand instead, or make it in the worker, at the first call:"
    " np.random.default_rng(torch.initial_seed())"
)


Place = tuple[int, int, int | None]  # rank, epoch, worker
Streams = dict[Place, list[Batch]]  # batches of one place, in their order


@check("DP1", "epochs", "source", "look")
def repeated_randomness(
    epochs: list[list[Epoch]], dataset: Dataset, look: Seen
) -> Iterable[Finding]:
    """Generators that make samples vary begin with other states in each worker, epoch and rank."""
    # A stream that was not read to its end may only have another order.
    is_known = dataset.complete or not dataset.iterable
    streams = _streams(epochs if is_known else [])
    used = set().union(*map(_used, streams.values()))
    if "" in dataset.stable and not any(name.startswith(COLLATE) for name in used):
        yield passed("a sample is the same whenever it is read")
        return
    if not is_known:
        yield undecided("the stream was not read to its end", NEED_END)
        return
    findings = [_repeated_by(kind, streams, dataset, look) for kind in AXES]
    if any(findings):
        yield from filter(None, findings)
        return
    if used:
        yield passed("random numbers differ everywhere")
    else:
        yield passed("samples vary, by no generator that is seen in use")


def _streams(ranks: list[list[Epoch]]) -> Streams:
    """Batches of which the generators are known, by place."""
    streams: Streams = defaultdict(list)
    for rank, epochs in enumerate(ranks):
        for number, epoch in enumerate(epochs):
            for batch in epoch.batches:
                if batch.random:
                    streams[rank, number, batch.worker].append(batch)
    return streams


def _repeated_by(kind: str, streams: Streams, dataset: Dataset, look: Seen) -> Finding | None:
    """A finding of the first two workers, epochs or ranks that draw the same."""
    axis = AXES[kind]
    # A stream may order its shards alike everywhere, and ranks take one size a step.
    is_each_judged = not dataset.iterable and kind != "ranks"
    for pair in _neighbours(streams, axis):
        one, other = (streams[place] for place in pair)
        generators = _begun_alike(one, other, is_each_judged)
        if not generators:
            continue
        names = [GLOBALS.get(name, f"the generator {name}") for name in generators]
        source = " and ".join(names)
        first, second = (place[axis] for place in pair)
        cause = f"{kind} {first} and {second} draw the same random numbers from {source}"
        shown = {"rank, epoch, worker": pair}
        # A stream may order its samples alike everywhere, and then makes other batches of them.
        if dataset.makes_batches and not set(generators) <= set(GLOBALS):
            return undecided(cause, NEED_SAMPLES, shown)
        if set(generators) <= set(GLOBALS):
            fix = SEEDED[kind]
        else:
            are_of_collate = any(name.startswith(COLLATE) for name in generators)
            fix = f"For {source}: {OF_COLLATE if are_of_collate else OWN}"
        return _if_together(failed(cause, shown, fix), kind, look)
    return None


def _neighbours(places: Iterable[tuple], axis: int) -> list[tuple[tuple, tuple]]:
    """Pairs of places that differ in this axis only."""
    pairs = []
    for one, other in combinations(places, 2):
        differing = [at for at, value in enumerate(one) if value != other[at]]
        if differing == [axis]:
            pairs.append((one, other))
    return pairs


def _used(batches: list[Batch]) -> set[str]:
    """Generators whose state went on while the batches were made."""
    states = [batches[0].start, *(batch.random for batch in batches)]
    used = set()
    for name in states[-1]:
        seen = {state.get(name) for state in states}
        # Without workers the sampler draws from torch's state, as all ranks may do alike.
        is_samplers = name == "torch" and batches[0].worker is None
        if len(seen) > 1 and not is_samplers:
            used.add(name)
    return used


def _begun_alike(one: list[Batch], other: list[Batch], is_each_judged: bool) -> list[str]:
    """The generators in use in two processes, if all of them began with equal states there; if
    each is judged by itself, also those that go on from batch to batch with equal states."""
    ours = one[0]
    theirs = other[0]
    if ours.pid == theirs.pid:
        return []
    used = _used(one) | _used(other)
    # One that was made while the first batch was read has begun by its end.
    begun = ours.random | ours.start
    theirs_begun = theirs.random | theirs.start
    alike = [name for name in sorted(used) if begun.get(name, name) == theirs_begun.get(name)]
    if len(alike) == len(used):
        return alike
    # One that is seeded by index and epoch is alike where the same samples are asked for.
    if not is_each_judged or ours.indices == theirs.indices:
        return []
    still_alike = [name for name in alike if ours.random.get(name, name) == theirs.random.get(name)]
    return [name for name in still_alike if len({batch.random.get(name) for batch in one}) > 1]


@check("DP2", "look", "epochs", "source")
def duplicates(look: Seen, epochs: list[list[Epoch]], dataset: Dataset) -> Iterable[Finding]:
    """Every sample once over all workers and ranks, or as often as the dataset holds it."""
    first_epochs = [rank[0] for rank in epochs]
    shared = shares.count(first_epochs, dataset)
    if shared is None:
        needs = NEED_ID if look["together"] else f"--ranks 1 if one process trains, or {NEED_ID}"
        yield undecided("no field of a sample is the same in two passes", needs)
        return

    if shared.draws_with_replacement():
        yield _drawn_again(shared)
        return

    findings = []
    for kind in ("workers", "ranks"):
        finding = _repeated(kind, shared, dataset)
        if finding:
            findings.append(_if_together(finding, kind, look))
    if not findings:
        findings.append(_shared_out(shared, first_epochs, dataset))
    if dataset.iterable and shared.total == shared.held:
        findings += _lost_later(epochs, dataset)
    yield from findings


def _drawn_again(shared: Shares) -> Finding:
    """The finding of a sampler that draws with replacement: ranks may meet, but not all the way."""
    cause = "the sampler draws with replacement"
    if _alike(shared, axis=0):
        cause += ", and several ranks draw the same samples in the same order"
        return undecided(cause, "a generator of the sampler that is seeded by the rank")
    return passed(cause)


def _repeated(kind: str, shared: Shares, dataset: Dataset) -> Finding | None:
    """A finding if several workers of a rank, or several ranks, give the same samples."""
    repeats = shared.repeated_by_workers() if kind == "workers" else shared.repeated_by_ranks()
    alike = _alike(shared, axis=1 if kind == "workers" else 0)
    if shared.complete:
        is_repeated = repeats.total() > shared.filling
    else:  # of a stream without an end only equal beginnings say that it is not shared out
        is_repeated = bool(alike)
    # What is packed the dataset does not give by itself: known is only that it comes again.
    if len(alike - shared.held.keys()) >= EXAMPLES:
        is_repeated = True
        repeats = Counter(alike)
    if not is_repeated:
        return None

    repeats = repeats or Counter(alike)
    # Of each name so many as the dataset holds: more are further repeats of the same samples.
    count = sum(min(extra, shared.held[name] or extra) for name, extra in repeats.items())
    factor = shared.workers if kind == "workers" else shared.ranks
    cause = f"{count} samples come on several of {factor} {kind}, up to {factor} times an epoch"
    evidence = {"ids": list(repeats)[:EXAMPLES]}
    if shared.from_sampler and dataset.frameworks and not dataset.accelerated:
        needs = f"the loader as {' or '.join(dataset.frameworks)} hands it to the loop"
        return undecided(cause, needs, evidence)
    if not alike and shared.gives_again():
        return undecided(cause, NEED_DRAWING, evidence)
    return failed(cause, evidence, _sampling(shared, dataset))


def _sampling(shared: Shares, dataset: Dataset) -> str:
    """What to change about a sampler whose ranks give the same; "" if there is none."""
    if not shared.from_sampler:
        return ""
    if dataset.accelerated:
        return ONE_SEED
    return "sampler=DistributedSampler(dataset) and no shuffle=; if one process trains: --ranks 1"


def _alike(shared: Shares, axis: int) -> set[str]:
    """The samples of two places that differ in this axis only and give the same in the same
    order."""
    for place, other in _neighbours(shared.streams, axis):
        names = shared.streams[place]
        distinct = set(names)
        if names == shared.streams[other] and len(distinct) >= EXAMPLES:
            return distinct
    return set()


def _shared_out(shared: Shares, epochs: list[Epoch], dataset: Dataset) -> Finding:
    """The finding where nothing repeats: all samples came, or some came nowhere."""
    if not shared.complete:
        cause = (
            f"no end in {len(dataset.samples)} samples, "
            "and no two places give the same ones in the same order"
        )
        return undecided(cause, NEED_END)

    unknown = shared.unknown()
    if unknown:
        cause = (
            f"{unknown.total()} of {shared.total.total()} samples are none that the dataset gives"
            " by itself"
        )
        needs = "batches that are samples, stacked along the first dimension; or sample_ids(batch)"
        return undecided(cause, needs)

    unended = [len(epoch.batches) for epoch in epochs if not epoch.ended]
    if unended and min(unended) < FEWEST and not shared.came_whole():
        read = counted(min(unended), "batch")
        return undecided(f"{read} of a rank came in the time", LONGER)

    anything_read = any(epoch.batches for epoch in epochs)
    all_ended = all(epoch.ended and not epoch.left for epoch in epochs)
    read_to_the_end = anything_read and dataset.all_drawn and all_ended
    lost = shared.lost() if read_to_the_end else Counter()
    # Less than one step may be dropped (drop_last), to give all ranks full batches.
    if lost.total() >= shared.one_step:
        cause = f"{lost.total()} of {shared.held.total()} samples come nowhere"
        evidence = {"lost": list(lost)[:EXAMPLES]}
        if shared.gives_again():
            return undecided(cause, NEED_DRAWING, evidence)
        return failed(cause, evidence, SHARE_OUT)

    places = f"{counted(shared.ranks, 'rank')} and {counted(shared.workers, 'worker')}"
    samples = f"{shared.total.total()} samples, {len(shared.total)} distinct"
    return passed(f"{places} share out {samples}, of {shared.held.total()}")


def _lost_later(epochs: list[list[Epoch]], dataset: Dataset) -> Iterable[Finding]:
    """A finding of each later epoch of a stream, of which epoch 0 gave every sample once, that
    leaves some out."""
    for number, parts in enumerate(zip(*epochs, strict=False)):
        shared = shares.count(list(parts), dataset)
        is_whole = all(part.batches and part.ended and not part.left for part in parts)
        if not shared or not is_whole or shared.unknown():
            continue
        lost = shared.lost().total()
        if lost >= shared.one_step:
            cause = f"{lost} of {shared.held.total()} samples come nowhere in epoch {number}"
            yield failed(cause, fix=SHARE_OUT)


def _if_together(finding: Finding, kind: str, look: Seen) -> Finding:
    """Ranks that are alike are a bug only if they train together, which the user says by
    --ranks."""
    if kind != "ranks" or finding.verdict != "fail" or look["together"]:
        return finding
    needs = "--ranks 2 if several processes train with this loader, --ranks 1 if one does"
    return replace(finding, verdict="not decidable", fix="", needs=needs)


@check("DP3", "look", "epochs", "loop")
def uneven_steps(look: Seen, ranks: list[list[Epoch]], loops: Ranks) -> Iterable[Finding]:
    """Ranks make as many steps, as each step waits for all; and evaluation has every sample
    once."""
    if len(ranks) == 1:
        yield inapplicable("one rank")
        return
    if all(loop["evaluation"] for loop in loops):
        yield from _evened_out([loop["evaluation"] for loop in loops])

    epochs = zip(*ranks, strict=True)
    for number, parts in enumerate(epochs):
        steps = [len(part.batches) for part in parts]
        ends = [len(part.batches) for part in parts if part.ended]
        if ends and max(steps) > min(ends):
            uneven = _uneven(f"ranks make {steps} steps in epoch {number}", loops[0]["joins"])
            yield _if_together(uneven, "ranks", look)
            return
    yield passed("")


def _evened_out(evaluations: Ranks) -> Iterable[Finding]:
    """A finding if ranks share out all samples of evaluation, and fill up the last ones."""
    drawn = Counter(row for seen in evaluations for row in seen["drawn"])
    samples = evaluations[0]["samples"]
    spare = drawn.total() - samples
    # Where each rank reads all samples, or some, nothing is shared out.
    if len(drawn) < samples or not 0 < spare < len(evaluations):
        return
    cause = f"--val-loader: {evaluations[0]['sampler']} repeats {counted(spare, 'sample')} to even"
    cause += f" out {len(evaluations)} ranks"
    repeated = [row for row, times in drawn.items() if times > 1]
    fix = "Subset(dataset, range(rank, len(dataset), world_size)), or a metric without the"
    fix += " repeated ids"
    yield failed(cause, {"repeated": repeated[:EXAMPLES]}, fix)


def _uneven(cause: str, joins: bool) -> Finding:
    fix = "Stop all ranks at the smallest number of steps, repeat samples on short ranks, or use "
    fix += "`with model.join():`; drop_last=True alone leaves them uneven"
    if joins:
        return passed(f"{cause}, and the loop uses Join")
    return failed(cause, fix=fix)


@check("edges", "edges", "epochs")
def edges(seen: Seen, epochs: list[list[Epoch]]) -> Iterable[Finding]:
    """Each rank makes steps, and evaluation loses no sample."""
    findings = []
    for rank, of_rank in enumerate(epochs):
        empty = _empty_epoch(of_rank)
        if empty == 0:
            findings.append(failed(f"rank {rank} makes no step", seen["train"]))
        elif empty is not None:
            cause = f"rank {rank} makes steps in epoch 0 and none in epoch {empty}"
            fix = "if the loader's iterator is spent, make it in __iter__, not in __init__"
            findings.append(failed(cause, fix=fix))
    for name, verdict in (("train", "pass"), ("val", "fail")):
        lost = _dropped(seen[name])
        if lost:
            samples = seen[name]["samples"]
            cause = f"drop_last=True on the {name} loader loses {lost} of {samples} samples"
            findings.append(Finding("edges", verdict, cause))
    yield from findings or [passed("no sample is lost")]


def _empty_epoch(epochs: list[Epoch]) -> int | None:
    """The first epoch without a step. What has no length may be an iterator, made anew for each
    epoch; one that was left before its end may have closed a generator that it goes on with."""
    for number, epoch in enumerate(epochs):
        is_empty = epoch.ended and not epoch.batches
        begins_anew = epoch.length is not None and epochs[number - 1].ended
        if is_empty and (number == 0 or begins_anew):
            return number
    return None


def _dropped(loader: Seen) -> int:
    """Samples that drop_last leaves out, on all ranks."""
    if not loader.get("drop_last") or not loader["samples"] or not loader["batch_size"]:
        return 0
    share = shares.share_of_rank(loader)
    kept = loader["replicas"] * (share - share % loader["batch_size"])
    return max(0, loader["samples"] - kept)
