"""Randomness that repeats, samples that come twice or never, ranks of unequal steps."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import replace
from itertools import combinations
from typing import Any

from millrace.audit.checks.registry import Finding, Ranks, Seen, check

CHANCE = 1e-6  # that sequences which were drawn apart are equal
EXAMPLES = 8  # ids that a finding names
AXES = {"workers": 2, "epochs": 1, "ranks": 0}  # of a place: rank, epoch, worker
GLOBALS = {"torch": "torch's global state", "python": "Python's random", "numpy": "NumPy's global state"}
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
def repeated_randomness(repeat: Ranks, epochs: Ranks, source: Seen, look: Seen) -> Iterable[Finding]:
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
                same = {"generators": copied} if varies and copied and set(copied) == _used(one) else None
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
        cause = "random numbers differ everywhere" if varies else "a sample is the same whenever it is read"
        yield Finding("DP1", "pass", cause, {"torch": version})


def _neighbours(places: Iterable[tuple], axis: int) -> list[tuple[tuple, tuple]]:
    """Pairs of places that differ in this axis only."""
    pairs = combinations(places, 2)
    return [(a, b) for a, b in pairs if [n for n, each in enumerate(a) if each != b[n]] == [axis]]


def plain(epochs: Ranks) -> list[list[list[Seen]]]:
    return [[part["notes"] for part in rank["plain"]] for rank in epochs]


def _varying(notes: list[Seen]) -> dict[str, list[tuple[Any, str]]]:
    """(Index, digest) of the fields that vary for an index; or else of batches, as collate_fn may draw."""
    pairs = [(i, s) for note in notes for i, s in zip(note["indices"] or (), note["samples"], strict=False)]
    names = sorted(pairs[0][1], reverse=True) if pairs else []
    columns = {name: [(i, s.get(name, "")) for i, s in pairs] for name in names}
    columns["batch"] = [(0, note["batch"]) for note in notes if note["indices"] == notes[0]["indices"]]
    varying = {name: pairs for name, pairs in columns.items() if len(set(pairs)) > len({i for i, _ in pairs})}
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
    """Equal sequences, longer than chance explains or from generators that began with equal states."""
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
    ranks = [rank["plain"][0] for rank in epochs]
    stable, notes = source["stable"], [note for epoch in ranks for note in epoch["notes"]]
    keys = [content_key(each, stable) for each in source["samples"]] if stable else []
    rows = {key: str(row) for row, key in enumerate(keys)} if len(set(keys)) == len(keys) else {}
    maps = all(note.get("indices") is not None for note in notes)
    # Contents that all differ say more than indices, which may mean other samples on another rank.
    by_index = maps and not (rows and source["complete"]) and _one_meaning(notes, stable)
    # Ids by the loader's sample_ids, and objects that a sampler hands out (cuts), are known by themselves.
    names = [each for note in notes for each in note.get("indices") or ()]
    by_index |= bool(names) and maps and all(isinstance(each, str) for each in names)
    # Where the dataset is asked for whole batches, no sample is seen by itself.
    by_index |= maps and any(len(note["indices"]) != len(samples(note)) for note in notes)
    if not keys and not by_index:
        yield Finding("DP2", "not decidable", "no field of a sample is the same in two passes", needs=NEED_ID)
        return
    streams: dict[tuple[int, int | None], list[str]] = defaultdict(list)
    for rank, epoch in enumerate(ranks):
        for note in epoch["notes"]:
            ids = note["indices"] if by_index else [content_key(each, stable) for each in samples(note)]
            streams[rank, note["worker"]] += [rows.get(each, each) for each in map(str, ids)]
    own = [[Counter(ids) for (r, _), ids in streams.items() if r == rank] for rank in range(len(ranks))]
    sums = [sum(each, Counter()) for each in own]
    total, workers = sum(sums, Counter()), max(1, *map(len, own))
    whole = Counter(total.keys()) if by_index else Counter(rows.get(key, key) for key in keys)
    facts = {"samples": total.total(), "distinct": len(total), "in the dataset": whole.total()}
    if maps and any(each - whole for each in sums):
        yield Finding("DP2", "pass", "the sampler draws with replacement", facts)
        return
    complete = by_index or source["complete"]
    # What makes ranks even is no duplicate: samplers fill up to a batch on each rank.
    sizes = (len(note["indices"] if by_index else samples(note)) for note in notes)
    most = len(ranks) * (1 if maps else workers) * max(sizes, default=1)
    spare = -len(whole) % most if maps else most - 1
    extra = {"workers": Counter(), "ranks": sum((each & whole for each in sums), Counter()) - whole}
    for each, parts in zip(sums, own, strict=True):
        again = {key: n for key, n in (each - whole).items() if sum(key in part for part in parts) > 1}
        extra["workers"] |= Counter(again)
    failed, shape = False, {"ranks": len(ranks), "workers": workers}
    for axis, kind in ((1, "workers"), (0, "ranks")):
        pairs = [(streams[a], streams[b]) for a, b in _neighbours(streams, axis)]
        same = any(a == b and len(set(a)) >= EXAMPLES for a, b in pairs)
        if not (extra[kind].total() > max(0, min(spare, whole.total() - 1)) if complete else same):
            continue
        failed, again, factor = True, extra[kind] or total, shape[kind]
        cause = f"{len(again)} samples come on several of {factor} {kind}, up to {factor} times an epoch"
        fix = f"In __iter__ yield sample i if i % {len(ranks) * workers} == rank * {workers} + worker_id, "
        fix += "that is i % (world_size * num_workers) == rank * num_workers + worker_id"
        if kind == "ranks":
            fix += "; Hugging Face datasets: split_dataset_by_node(dataset, rank, world_size)"
        if maps:
            fix = "sampler=DistributedSampler(dataset) and no shuffle=; if one process trains: --ranks 1"
        finding = Finding("DP2", "fail", cause, {"ids": list(again)[:EXAMPLES], **shape}, fix)
        if maps and source["frameworks"]:
            needs = f"the loader as {' or '.join(source['frameworks'])} hands it to the loop"
            finding = replace(finding, verdict="not decidable", fix="", needs=needs)
        yield _if_together(finding, kind, look)
    read = bool(notes) and source["all_drawn"] and all(epoch["ended"] for epoch in ranks)
    lost = whole - total if read else Counter()
    if failed:
        return
    if not complete:
        cause = f"no end in {len(keys)} samples, and no two places give the same ones in the same order"
        needs = "a stream that ends: fewer shards, by --arg"
        yield Finding("DP2", "not decidable", cause, facts, needs=needs)
    elif lost.total() >= most:
        cause = f"{lost.total()} of {whole.total()} samples come nowhere: they are shared out twice"
        fix = "Share out over ranks in one place, the dataset or its sampler; over workers in __iter__ only"
        yield Finding("DP2", "fail", cause, {**facts, "lost": list(lost)[:EXAMPLES]}, fix)
    else:
        yield Finding("DP2", "pass", f"{len(ranks)} ranks and {workers} workers share out the samples", facts)


def _if_together(finding: Finding, kind: str, look: Seen) -> Finding:
    """Ranks that are alike are a bug only if they train together, which the user says by --ranks."""
    if kind != "ranks" or finding.needs or look["together"]:
        return finding
    needs = "--ranks 2 if several processes train with this loader, --ranks 1 if one does"
    return replace(finding, verdict="not decidable", fix="", needs=needs)


def _one_meaning(notes: list[Seen], stable: list[str]) -> bool:
    """Whether each index names one sample on all ranks; if contents cannot tell, whether it comes once."""
    rows = [(i, s) for note in notes for i, s in zip(note["indices"], samples(note), strict=False)]
    pairs = [(str(index), content_key(sample, stable)) for index, sample in rows]
    return len(set(pairs) if stable else pairs) == len({index for index, _ in pairs})


def samples(note: Seen) -> list[dict[str, str]]:
    return note.get("samples") or [{"": note["batch"]}]


def content_key(sample: dict[str, str], stable: list[str]) -> str:
    """What identifies a sample: the whole, or else its fields that are not random."""
    return sample[""] if "" in stable else " ".join(sample.get(name, "") for name in stable)


@check("DP3", probes=("epochs", "loop"))
def uneven_steps(epochs: Ranks, loops: Ranks) -> Iterable[Finding]:
    """Ranks make as many steps, as each step waits for all; and evaluation has every sample once."""
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
            cause = f"ranks make {steps} steps" + (", and the loop uses Join" if loop["joins"] else "")
            fix = "Stop all ranks at the smallest number of steps, repeat samples on short ranks, or use "
            fix += "`with model.join():`; drop_last=True alone leaves them uneven"
            yield Finding("DP3", "pass" if loop["joins"] else "fail", cause, facts, fix)
            return
    yield Finding("DP3", "pass" if facts else "not applicable", "" if facts else "one rank", facts)
