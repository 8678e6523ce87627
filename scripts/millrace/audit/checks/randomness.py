"""Randomness that repeats, samples that come twice or never, ranks of unequal steps."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import replace
from itertools import combinations
from typing import Any

from millrace.audit.checks import shares
from millrace.audit.checks.registry import Finding, Ranks, Seen, check
from millrace.audit.checks.shares import Dataset, Epoch, Shares

CHANCE = 1e-6  # that sequences which were drawn apart are equal
EXAMPLES = 8  # ids that a finding names
AXES = {"workers": 2, "epochs": 1, "ranks": 0}  # of a place: rank, epoch, worker
GLOBALS = {
    "torch": "torch's global state",
    "python": "Python's random",
    "numpy": "NumPy's global state",
}
NEED_ID = "a field that is the same whenever a sample is read: yield an id"
SEEDED = {
    "workers": "worker_init_fn: no constant in torch.manual_seed or np.random.seed (torch seeds each worker)",
    "epochs": "worker_init_fn: np.random.seed(torch.initial_seed() % 2**32), which is new in each epoch",
    "ranks": "torch.manual_seed(seed + rank) at the start, and the same for NumPy and random",
}
OWN = (
    "draw from torch.rand instead, or in worker_init_fn get_worker_info().dataset.rng = "
    "np.random.default_rng(torch.initial_seed()); ranks: torch.manual_seed(seed + rank)"
)


@check("DP1", probes=("repeat", "epochs", "source", "look"))
def repeated_randomness(
    repeat: Ranks, epochs: Ranks, source: Seen, look: Seen
) -> Iterable[Finding]:
    """What varies when one index is read again must vary between workers, epochs and ranks."""
    by_index, version = repeat[0]["epochs"] is not None, look["torch"]
    ranks = [rank["epochs"] for rank in repeat] if by_index else plain(epochs)
    streams: dict[tuple, list[Seen]] = defaultdict(list)
    for rank, parts in enumerate(ranks):
        for epoch, notes in enumerate(parts):
            for note in sorted(notes, key=lambda each: each.get("order", 0)):
                if note.get("samples") and "random" in note:
                    streams[rank, epoch, note["worker"]].append(note)
    failed = False
    for kind, axis in AXES.items():
        for pair in _neighbours(streams, axis):
            one, other = (streams[place] for place in pair)
            if by_index:
                same = _same(one, other)
            else:  # a stream lets nobody choose an index: all generators in use began with equal states
                copied, varies = _copied(one, other), source["random"] and source["complete"]
                same = (
                    {"generators": copied}
                    if varies and copied and set(copied) == _used(one)
                    else None
                )
            if same is None:
                continue
            failed, names = True, same["generators"]
            said = " and ".join(GLOBALS.get(name, f"the generator {name}") for name in names)
            said = said or "a generator outside the dataset"
            cause = f"{kind} {pair[0][axis]} and {pair[1][axis]} draw the same random numbers from {said}"
            seeds = [notes[0].get("seed") for notes in (one, other)]
            facts = {**same, "rank, epoch, worker": pair, "worker seeds": seeds, "torch": version}
            fix = SEEDED[kind] if names and set(names) <= set(GLOBALS) else f"For {said}: {OWN}"
            yield _if_together(Finding("DP1", "fail", cause, facts, fix), kind, look)
            break
    if not failed:
        varies = any(map(_varying, streams.values())) if by_index else "" not in source["stable"]
        cause = (
            "random numbers differ everywhere"
            if varies
            else "a sample is the same whenever it is read"
        )
        yield Finding("DP1", "pass", cause, {"torch": version})


def _neighbours(places: Iterable[tuple], axis: int) -> list[tuple[tuple, tuple]]:
    """Pairs of places that differ in this axis only."""
    pairs = combinations(places, 2)
    return [(a, b) for a, b in pairs if [n for n, each in enumerate(a) if each != b[n]] == [axis]]


def plain(epochs: Ranks) -> list[list[list[Seen]]]:
    return [[part["notes"] for part in rank["plain"]] for rank in epochs]


def _varying(notes: list[Seen]) -> dict[str, list[tuple[Any, str]]]:
    """(Index, digest) of the fields that vary for an index; or else of batches, as collate_fn may
    draw."""
    pairs = [
        (i, s)
        for note in notes
        for i, s in zip(note["indices"] or (), note["samples"], strict=False)
    ]
    names = sorted(pairs[0][1], reverse=True) if pairs else []
    columns = {name: [(i, s.get(name, "")) for i, s in pairs] for name in names}
    columns["batch"] = [
        (0, note["batch"]) for note in notes if note["indices"] == notes[0]["indices"]
    ]
    varying = {
        name: pairs
        for name, pairs in columns.items()
        if len(set(pairs)) > len({i for i, _ in pairs})
    }
    return {name: pairs for name, pairs in varying.items() if name != "batch" or len(varying) == 1}


def _used(notes: list[Seen]) -> set[str]:
    """Generators whose state went on while the batches were made."""
    states = [notes[0].get("start") or {}, *(note["random"] for note in notes)]
    return {name for name in states[-1] if len({each.get(name) for each in states}) > 1}


def _copied(one: list[dict], other: list[dict]) -> list[str]:
    """Generators in use in both places that began with equal states, if anything began there."""
    starts = [notes[0].get("start") or {} for notes in (one, other)]
    equal = {name for name in starts[0] if starts[0][name] == starts[1].get(name)}
    return sorted(equal & _used(one) & _used(other)) if one[0]["pid"] != other[0]["pid"] else []


def _same(one: list[dict], other: list[dict]) -> Seen | None:
    """Equal sequences, longer than chance explains or from generators that began with equal
    states."""
    copied, theirs = _copied(one, other), _varying(other)
    for name, mine in _varying(one).items():
        count = min(len(mine), len(theirs.get(name, [])))
        if count > 1 and mine[:count] == theirs[name][:count]:
            drawn, of_index = Counter(mine[:count]), Counter(i for i, _ in mine[:count])
            match = sum(n * n / of_index[i] for (i, _), n in drawn.items()) / count
            if match**count < CHANCE or (match < 1 and copied):
                names = copied or sorted(_used(one) & _used(other) - {"torch"})
                return {"generators": names, "field": name, "samples": count, "draws": mine[:4]}
    # Numbers of several generators in one field: one whose states go on alike gives the same ones.
    for name in _copied(one, other) if theirs else ():
        mine, others = ([note["random"].get(name) for note in notes] for notes in (one, other))
        count = min(len(mine), len(others))
        if count > 1 and mine[:count] == others[:count] and len(set(mine[:count])) == count:
            return {"generators": [name], "batches": count, "states": mine[:4]}
    return None


@check("DP2", probes=("look", "epochs", "source"))
def duplicates(look: Seen, epochs: Ranks, source: Seen) -> Iterable[Finding]:
    """Every sample once over all workers and ranks, or as often as the dataset holds it."""
    first_epochs = [Epoch.parse(rank["plain"][0]) for rank in epochs]
    dataset = Dataset.parse(source)
    shared = shares.count(first_epochs, dataset)
    if shared is None:
        cause = "no field of a sample is the same in two passes"
        yield Finding("DP2", "not decidable", cause, needs=NEED_ID)
        return

    facts = {
        "samples": shared.total.total(),
        "distinct": len(shared.total),
        "in the dataset": shared.held.total(),
    }
    if shared.draws_with_replacement():
        yield Finding("DP2", "pass", "the sampler draws with replacement", facts)
        return

    findings = []
    for kind in ("workers", "ranks"):
        finding = _repeated(kind, shared, dataset)
        if finding:
            findings.append(_if_together(finding, kind, look))
    if not findings:
        findings.append(_shared_out(shared, first_epochs, dataset, facts))
    yield from findings


def _repeated(kind: str, shared: Shares, dataset: Dataset) -> Finding | None:
    """A finding if several workers of a rank, or several ranks, give the same samples."""
    repeats = shared.repeated_by_workers() if kind == "workers" else shared.repeated_by_ranks()
    if shared.complete:
        is_repeated = repeats.total() > shared.filling
    else:  # of a stream without an end only equal beginnings say that it is not shared out
        is_repeated = _begin_alike(shared, axis=1 if kind == "workers" else 0)
    if not is_repeated:
        return None

    repeats = repeats or shared.total
    # Of each name so many as the dataset holds: more are further repeats of the same samples.
    count = sum(min(extra, shared.held[name] or extra) for name, extra in repeats.items())
    shape = {"ranks": shared.ranks, "workers": shared.workers}
    factor = shape[kind]
    cause = f"{count} samples come on several of {factor} {kind}, up to {factor} times an epoch"
    evidence = {"ids": list(repeats)[:EXAMPLES], **shape}
    if shared.from_sampler and dataset.frameworks:
        needs = f"the loader as {' or '.join(dataset.frameworks)} hands it to the loop"
        return Finding("DP2", "not decidable", cause, evidence, needs=needs)
    return Finding("DP2", "fail", cause, evidence, _how_to_share_out(kind, shared))


def _begin_alike(shared: Shares, axis: int) -> bool:
    """Whether two places that differ in this axis only give the same samples in the same order."""
    pairs = [(shared.streams[a], shared.streams[b]) for a, b in _neighbours(shared.streams, axis)]
    return any(ours == theirs and len(set(ours)) >= EXAMPLES for ours, theirs in pairs)


def _how_to_share_out(kind: str, shared: Shares) -> str:
    if shared.from_sampler:
        return (
            "sampler=DistributedSampler(dataset) and no shuffle=; if one process trains: --ranks 1"
        )
    ranks, workers = shared.ranks, shared.workers
    fix = (
        f"In __iter__ yield sample i if i % {ranks * workers} == rank * {workers} + worker_id, "
        "that is i % (world_size * num_workers) == rank * num_workers + worker_id"
    )
    if kind == "ranks":
        fix += "; Hugging Face datasets: split_dataset_by_node(dataset, rank, world_size)"
    return fix


def _shared_out(
    shared: Shares, epochs: list[Epoch], dataset: Dataset, facts: dict[str, int]
) -> Finding:
    """The finding where nothing repeats: all samples came, or some came nowhere."""
    if not shared.complete:
        cause = (
            f"no end in {len(dataset.samples)} samples, "
            "and no two places give the same ones in the same order"
        )
        needs = "a stream that ends: fewer shards, by --arg"
        return Finding("DP2", "not decidable", cause, facts, needs=needs)

    unknown = shared.unknown()
    if unknown:
        cause = f"{unknown.total()} of {shared.total.total()} samples are none that the dataset gives by itself"
        needs = "batches that are samples, stacked along the first dimension; or sample_ids(batch)"
        return Finding("DP2", "not decidable", cause, facts, needs=needs)

    anything_read = any(epoch.batches for epoch in epochs)
    read_to_the_end = anything_read and dataset.all_drawn and all(epoch.ended for epoch in epochs)
    lost = shared.lost() if read_to_the_end else Counter()
    # Less than one step may be dropped (drop_last), to give all ranks full batches.
    if lost.total() >= shared.one_step:
        cause = f"{lost.total()} of {shared.held.total()} samples come nowhere: they are shared out twice"
        fix = "Share out over ranks in one place, the dataset or its sampler; over workers in __iter__ only"
        return Finding("DP2", "fail", cause, {**facts, "lost": list(lost)[:EXAMPLES]}, fix)

    cause = f"{shared.ranks} ranks and {shared.workers} workers share out the samples"
    return Finding("DP2", "pass", cause, facts)


def _if_together(finding: Finding, kind: str, look: Seen) -> Finding:
    """Ranks that are alike are a bug only if they train together, which the user says by
    --ranks."""
    if kind != "ranks" or finding.needs or look["together"]:
        return finding
    needs = "--ranks 2 if several processes train with this loader, --ranks 1 if one does"
    return replace(finding, verdict="not decidable", fix="", needs=needs)


def samples(note: Seen) -> list[dict[str, str]]:
    return note.get("samples") or [{"": note["batch"]}]


@check("DP3", probes=("epochs", "loop"))
def uneven_steps(epochs: Ranks, loops: Ranks) -> Iterable[Finding]:
    """Ranks make as many steps, as each step waits for all; and evaluation has every sample
    once."""
    ranks, loop, facts = [rank["plain"] for rank in epochs], loops[0], {}
    if len(ranks) > 1 and (drawn := loop["evaluation"]):
        spare = drawn["drawn"] - drawn["samples"]
        cause = f"--val-loader: DistributedSampler repeats {spare} samples to even out {len(ranks)} ranks"
        fix = "Subset(dataset, range(rank, len(dataset), world_size)), or a metric without the repeated ids"
        if spare > 0:
            yield Finding("DP3", "fail", cause, drawn, fix)
    for epoch, parts in enumerate(zip(*ranks, strict=True) if len(ranks) > 1 else ()):
        steps, counts = [len(part["notes"]) for part in parts], Counter()
        for rank, part in enumerate(parts):
            for note in part["notes"]:
                counts[f"rank {rank}, worker {note['worker']}"] += note["size"]
        facts = {"epoch": epoch, "steps of ranks": steps, "samples of workers": dict(counts)}
        ends = [count for count, part in zip(steps, parts, strict=True) if part["ended"]]
        if ends and max(steps) > min(ends):
            cause = f"ranks make {steps} steps" + (
                ", and the loop uses Join" if loop["joins"] else ""
            )
            fix = "Stop all ranks at the smallest number of steps, repeat samples on short ranks, or use "
            fix += "`with model.join():`; drop_last=True alone leaves them uneven"
            yield Finding("DP3", "pass" if loop["joins"] else "fail", cause, facts, fix)
            return
    yield Finding("DP3", "pass" if facts else "not applicable", "" if facts else "one rank", facts)
