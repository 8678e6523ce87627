"""Checks of what a loader promises: DP4 to DP9, DP15, lost samples, files that are gone."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate
from typing import NamedTuple

from millrace.audit.checks.batches import Epoch, epochs_of
from millrace.audit.checks.registry import Finding, Ranks, Seen, check

NO_LOADER = "an iterable of batches, or a DataLoader that keeps one iterator for all epochs"
NO_BATCH = "no batch could be made in one process"
SMALL = 512  # bytes a sample that allocators may account for
FEWEST = 8  # measurements that show a growth
MEANT = re.compile("max|limit|per|epoch|steps")


def _mib(size: float) -> str:
    return f"{size / 2**20:.1f} MiB" if size < 2**30 else f"{size / 2**30:.1f} GiB"


def _told(error: Seen) -> str:
    return error["text"]


@check("DP4", probes=("contract",))
def ragged(seen: Seen) -> Iterator[Finding]:
    if not (read := seen.get("collate")):
        yield Finding("DP4", "not applicable", NO_LOADER)
    elif failed := read.get("failed"):
        cause, needs = (
            f"collate_fn raises {_told(failed)}",
            "a collate_fn that takes samples of one shape",
        )
        if "field" in failed:
            cause, needs = (
                f"field {failed['field']}: {' against '.join(failed['shapes'])}: {cause}",
                "",
            )
        yield Finding("DP4", "not decidable" if needs else "fail", cause, failed, needs=needs)
    elif read["batches"]:
        mute = [
            f"{path} {each['shape']}" for path, each in read["padded"].items() if not each["by"]
        ]
        cause = f"{read['batches']} batches collate"
        cause += f"; padded without lengths or mask: {', '.join(mute)}" if mute else ""
        yield Finding("DP4", "pass", cause, {"padded": read["padded"]} if mute else {})
    elif "raised" in read:
        yield Finding(
            "DP4", "not decidable", NO_BATCH, read["raised"], needs="samples without workers"
        )
    else:
        yield Finding("DP4", "not applicable", "the loader gives no batch")


@check("DP5", probes=("contract",))
def pinning(seen: Seen) -> Iterator[Finding]:
    if not seen.get("pin_memory"):
        yield Finding(
            "DP5", "not applicable", "pin_memory=False" if "pin_memory" in seen else NO_LOADER
        )
    elif (pin := seen["collate"].get("pin")) is None:
        yield Finding("DP5", "not decidable", NO_BATCH, needs="a batch without workers")
    else:
        problem, needs = "", ""
        if raised := pin.get("raised"):
            problem = f"pinning raises {_told(raised)}"
            device = re.search("cuda|driver|accelerator", raised["text"], re.IGNORECASE)
            needs = "a machine with a GPU" if device else ""
        elif pin["lost"]:
            problem = f".pin_memory() {'returns None' if pin['none'] else 'loses ' + ', '.join(pin['lost'])}"
        elif pin["missed"]:
            problem = f"not pinned: {', '.join(pin['missed'])}"
        if problem:
            verdict, cause = (
                "not decidable" if needs else "fail",
                f"{problem} (the batch is a {pin['type']})",
            )
            yield Finding("DP5", verdict, cause, pin, needs=needs)
        else:
            yield Finding("DP5", "pass", f"{pin['pinned']} tensors are pinned")


@check("DP6", probes=("methods",))
def start_methods(seen: Seen) -> Iterator[Finding]:
    """Workers give equal samples however they are started."""
    if not seen["workers"]:
        cause = "num_workers=0: nothing is sent to workers"
        if seen["workers"] is None:
            cause = NO_LOADER
        yield Finding("DP6", "not applicable", cause)
        return

    own, compared = seen["own"], "fork, spawn and forkserver"
    if "forkserver" not in seen["runs"]:
        compared = "fork and spawn"
    elsewhere, fails = [], False
    for cause, problem in _problems(seen).items():
        cause = f"under {' and '.join(problem.methods)}: {cause}"
        if own in (None, *problem.methods):
            fails = True
            yield Finding("DP6", "fail", cause, problem.shown)
        else:
            elsewhere.append(cause)
    if not fails:
        passed = [f"equal samples under {own or compared}", *elsewhere]
        yield Finding("DP6", "pass", "; ".join(passed))


class Problem(NamedTuple):
    """What goes wrong if workers are started by some methods."""

    methods: list[str]
    shown: Seen


def _problems(seen: Seen) -> dict[str, Problem]:
    """Problems by cause."""
    problems = {}
    for bad in seen["pickled"]:
        cause = f"{bad['path']} ({bad['what']}) cannot be pickled: {bad['text']}"
        problems[cause] = Problem(["spawn", "forkserver"], bad)
    for path in seen["files"]:
        cause = f"{path} is an open file, whose position forked workers share"
        problems[cause] = Problem(["fork"], {"path": path})
    runs = seen["runs"]
    for method in ("spawn", "forkserver"):
        changed = (
            _changed(runs["fork"], runs["fork again"], runs[method]) if method in runs else None
        )
        if changed:
            problems.setdefault(changed["text"], Problem([], changed)).methods.append(method)
    return problems


def _changed(fork: Seen, again: Seen, run: Seen) -> Seen | None:
    """How a method's samples differ from those of a fork in what two forks have in common."""
    if "raised" in fork or "raised" in again:
        return None
    if "raised" in run:
        main = (
            "the script starts workers when it is imported: no guard of __main__ around its calls"
        )
        return {
            **run["raised"],
            "text": main if run.get("unguarded") else run["raised"]["text"][:300],
        }
    # A field that is random in the method too may differ: only the seeds of torch are equal.
    fields, left = set(), run["holds"]
    for name, other in run["digests"].items():
        one = fork["digests"].get(name)
        if one and one == again["digests"].get(name) and other[0] == other[-1] != one[0]:
            fields.add(name.rpartition(": ")[2] or "the sample")
    held = fork["holds"].items()
    gone = [f"{path}: {kind} -> {left.get(path)}" for path, kind in held if left.get(path) != kind]
    what = (
        f"what vanished: {', '.join(gone[:4])}"
        if gone
        else "nothing it holds vanished: a global state"
    )
    text = f"samples differ from those of fork in {', '.join(sorted(fields))}; {what}"
    return {"text": text, "fields": sorted(fields), "vanished": gone[:20]} if fields else None


@check("DP7", probes=("look", "epochs"))
def steps(look: Seen, epochs: Ranks) -> Iterator[Finding]:
    """An epoch has as many batches as the loader says."""
    if look.get("iterable"):
        return
    for rank, (first, *_) in enumerate(epochs_of(epochs)):
        batches = len(first.batches)
        if first.ended and first.length not in (None, batches):
            cause = f"len(loader) is {first.length}, rank {rank} got {batches} batches"
            shown = {"rank": rank, "len": first.length, "batches": batches}
            yield Finding("DP7", "fail", cause, shown)


@check("DP7", probes=("contract",))
def lengths(seen: Seen) -> Iterator[Finding]:
    """The data set has as many samples as it says."""
    size, items = seen.get("samples"), seen.get("items", {})
    counted = seen.get("counted", size)
    if size is None:
        yield Finding("DP7", "not applicable", "the data set has no len")
        return
    if counted not in (None, size):
        cause = f"len is {size}, the iterator gives {counted} samples"
        yield Finding("DP7", "fail", cause, {"len": size, "samples": counted})
        return
    last = items.get("last", {})
    if last.get("type") in ("IndexError", "KeyError"):
        cause = f"len is {size}, but [{size - 1}] raises {_told(last)}"
        yield Finding("DP7", "fail", cause, last)
        return
    place = items.get("equals")
    if place is not None and not _repeats_on_purpose(size, items):
        cause = f"len is {size}, but [{size}] gives sample {place} again: it wraps around"
        yield Finding("DP7", "fail", cause, {"len": size, "index": size, "equals": place})
        return
    if place is None and items.get("longer"):
        yield _too_short(size, items)
        return
    yield Finding("DP7", "pass", f"len is {size}")


def _repeats_on_purpose(size: int, items: Seen) -> bool:
    """Whether an attribute of the data set says how often it gives the items of a list."""
    factors = [number for number in items["numbers"].values() if number > 1]
    return any(size == factor * each for factor in factors for each in items["lists"].values())


def _too_short(size: int, items: Seen) -> Finding:
    """A list has more items than the length: a bug, unless an attribute limits the length."""
    name, many = next(iter(items["longer"].items()))
    cause = f"len is {size}, but {name} has {many} items, and [{many - 1}] works"
    stored = [each for each, value in items["numbers"].items() if value == size]
    shown = {"len": size, name: many, "stored": stored}
    if many > size + 1 and (not stored or any(map(MEANT.search, stored))):
        needs = "whether the shorter length is meant"
        return Finding("DP7", "not decidable", cause, shown, needs=needs)
    return Finding("DP7", "fail", cause, shown)


@check("DP8", probes=("model", "epochs"))
def batch_of_one(seen: Seen, epochs: Ranks) -> Iterator[Finding]:
    """No batch of one meets a batch norm."""
    one = seen.get("one", {})
    ones = {}  # steps by rank
    for rank, parts in enumerate(epochs_of(epochs)):
        for epoch in parts:
            step = _step_of_one(epoch, seen["train"], "raised" in one)
            if step is not None:
                ones[f"rank {rank}"] = step
    if not ones:
        yield Finding("DP8", "pass", "no rank gets a batch of one")
        return

    steps = ", ".join(f"{rank}: step {step}" for rank, step in ones.items())
    where = f"a batch of one ({steps})"
    shown = {**seen["train"], "steps": ones, **one}
    if one.get("raised"):
        yield Finding("DP8", "fail", f"{where} raises {_told(one['raised'])}", shown)
        return
    if "shapes" in one:
        yield Finding("DP8", "pass", f"the model takes {where}", shown)
        return
    if one.get("norms") == []:
        yield Finding("DP8", "pass", f"{where}, and the model has no batch norm", shown)
        return
    cause = f"{where}: BatchNorm with one value a channel would raise"
    if "unknown" in one:
        cause += f"; {one['unknown']}"
    needs = "the model: --model module:factory"
    yield Finding("DP8", "not decidable", cause, shown, needs=needs)


def _step_of_one(epoch: Epoch, loader: Seen, is_refused: bool) -> int | None:
    """The step that has a batch of one; `is_refused`: the model raises on it."""
    sizes = [batch.size for batch in epoch.batches]
    if 1 in sizes and (max(sizes) > 1 or is_refused):
        return sizes.index(1)
    # Of an epoch that was not read to its end, the last batch is computed.
    if epoch.ended or loader.get("iterable", True) or loader["drop_last"]:
        return None
    size, share = loader["batch_size"], -(-loader["samples"] // loader["replicas"])
    if not size or size == 1 or share % size != 1:
        return None
    return share // size


@check("DP9", probes=("memory",))
def memory(seen: Seen) -> Iterator[Finding]:
    if not (new := seen.get("new")):
        yield Finding("DP9", "not applicable", "no sample was read" if seen else NO_LOADER)
        return
    most, size, limit = seen["most"], seen["samples"], seen["machine"]
    grown, stops = _growth(new, most)
    copied = -_slope(new, 3)
    shown = {
        "bytes_per_new_sample": round(grown),
        "private": new[-1][1],
        "read": sum(n for n, *_ in new),
    }
    shown |= {
        "samples": size,
        "workers": max(1, seen["workers"]),
        "ranks": seen["ranks"],
        "memory": limit,
    }
    verdict, cause, needs = "pass", f"a worker grows by {grown:.0f} bytes per new sample", ""
    if grown < SMALL:
        cause = "no growth with new samples"
    elif size is None:
        verdict, needs = "not decidable", "the number of samples: __len__"
    else:
        entries = min(size, most) if stops and most else size
        factor, why = _factor(seen, bool(stops))
        total = grown * entries * factor
        cause += f": {_mib(total)} for {entries} samples x {factor} ({why}), of {_mib(limit)}"
        shown |= {"factor": factor, "extrapolated": round(total)}
        verdict, needs = _enough(total, limit, grown * min(size, most or 0) * factor, most, stops)
    if copied > SMALL and (size or 0) > 10_000:
        cause += (
            f"; copy-on-write of Python lists: {copied:.0f} bytes a sample, at most what they hold"
        )
    yield Finding("DP9", verdict, cause, shown, needs=needs)


def _enough(
    total: float, limit: float, at_bound: float, most: int | None, stops: bool | None
) -> tuple[str, str]:
    """The verdict on so many bytes, and what would decide; `at_bound`: if the growth ended at
    `most`."""
    if total <= limit:
        return "pass", ""
    if stops is not None or at_bound > limit:
        return "fail", ""
    if most:
        return "not decidable", f"whether the growth ends after {most} samples: a longer --timeout"
    return "not decidable", "the most entries that its cache takes"


def _factor(seen: Seen, stops: bool) -> tuple[int, str]:
    """How many copies of the growth there are, and why."""
    workers, ranks = max(1, seen["workers"]), seen["ranks"]
    # Workers that end with the epoch have together read each sample once a rank, or once if ranks
    # share.
    if seen["persistent"] or stops:
        return workers * ranks, f"{workers} workers x {ranks} ranks"
    factor = 1 if seen["split"] else ranks
    shared = "ranks and" if factor == 1 else f"{ranks} ranks, whose"
    return factor, f"{shared} workers share the samples and end with the epoch"


def _growth(new: list[list[int]], most: int | None) -> tuple[float, bool | None]:
    """Bytes per new sample, and whether the growth ends after the `most` entries that the source
    speaks of.

    Only what was measured says so: None if too few samples were read.
    """
    grown = _slope(new, 2)
    if most is None:
        return grown, False
    counts = list(accumulate(size for size, *_ in new))
    first = bisect_right(counts, most)
    before, after = new[: first + 1], new[first:]
    if most == 0 or len(after) < FEWEST:
        return grown, None

    # Allocators settle for a while after a cache is full.
    full, beyond = _slope(before, 2), _slope(after, 2)
    if beyond < max(SMALL, full / 3):
        return full, True
    return beyond, False


def _slope(rows: list[list[int]], column: int) -> float:
    """Growth per sample, 0 unless both halves grow. The first fifth is left out: imports and first
    calls."""
    rows = rows[len(rows) // 5 :]
    if len(rows) < 4:
        return 0.0
    parts = [rows[: len(rows) // 2 + 1], rows[len(rows) // 2 :]]
    low, high = sorted((p[-1][column] - p[0][column]) / sum(row[0] for row in p[1:]) for p in parts)
    return (low + high) / 2 if low * high > 0 and 0.25 < low / high < 4 else 0.0


@check("DP15", probes=("contract",))
def shared_memory(seen: Seen) -> Iterator[Finding]:
    if not seen.get("workers") or seen["shm"] is None:
        cause = "num_workers=0: no shared memory" if seen.get("workers") == 0 else NO_LOADER
        yield Finding("DP15", "not applicable", cause)
        return
    read, ranks, workers, ahead = seen["collate"], seen["ranks"], seen["workers"], seen["prefetch"]
    if not read["batches"]:
        yield Finding("DP15", "not decidable", NO_BATCH, needs="a batch without workers")
        return
    # Beside the batches made ahead, the loop has one while it asks for the next.
    descriptors = seen["strategy"] == "file_descriptor"
    flying = workers * ahead + 1 + descriptors
    flying = min(flying, seen["steps"] or flying)
    needed, free = read["bytes"] * flying * ranks, seen["shm"]
    cause = f"{_mib(read['bytes'])} a batch x {flying} ({workers} workers x prefetch_factor {ahead}, and "
    cause += f"{1 + descriptors} in the loop) x {ranks} ranks = {_mib(needed)}; /dev/shm: {_mib(free)} free"
    shown = {"batch": read["bytes"], "in_flight": flying * ranks, "needed": needed, "free": free}
    yield Finding("DP15", "fail" if needed > free else "pass", cause, shown)
    # A worker has the descriptors of its batches until they are fetched, the loop those out of
    # turn.
    waiting = min(flying, max(ahead + 1, ahead * (workers - 1) + 2))
    wanted = seen["open"] + 4 * workers + waiting * read["tensors"]
    if descriptors and wanted > seen["files"]:
        cause = f"{read['tensors']} tensors a batch x {waiting} batches in a process: {wanted} open files, "
        cause += f"ulimit -n is {seen['files']}"
        shown = {"tensors": read["tensors"], "needed": wanted, "limit": seen["files"]}
        yield Finding("DP15", "fail", cause, shown)


@check("edges", probes=("model", "epochs"))
def edges(seen: Seen, epochs: Ranks) -> Iterator[Finding]:
    """Each rank makes steps, and evaluation loses no sample."""
    findings = []
    for rank, parts in enumerate(epochs_of(epochs)):
        if parts[0].ended and not parts[0].batches:
            shown = {"rank": rank, **seen["train"]}
            findings.append(Finding("edges", "fail", f"rank {rank} makes no step", shown))
    for name, verdict in (("train", "pass"), ("val", "fail")):
        lost = _dropped(seen[name])
        if lost:
            samples = seen[name]["samples"]
            cause = f"drop_last=True on the {name} loader loses {lost} of {samples} samples"
            findings.append(Finding("edges", verdict, cause, seen[name]))
    yield from findings or [Finding("edges", "pass", "no sample is lost")]


def _dropped(loader: Seen) -> int:
    """Samples that drop_last leaves out."""
    if not loader.get("drop_last") or not loader["samples"] or not loader["batch_size"]:
        return 0
    return loader["samples"] % loader["batch_size"]


@check("stale", probes=("contract",))
def stale(seen: Seen) -> Iterator[Finding]:
    for each in seen.get("paths", ()):
        if each["missing"] and each["needed"]:
            cause = f"{each['missing']} of {each['paths']} files in {each['name']} are missing: "
            yield Finding("stale", "fail", cause + ", ".join(each["names"]), each)
        elif "index" in each:
            cause = f"{each['index']} is older than {', '.join(each['newer'])}"
            yield Finding(
                "stale", "not decidable", cause, each, needs="an index written after its files"
            )
        else:
            yield Finding("stale", "pass", f"{each['paths']} files in {each['name']} exist")
    if not seen.get("paths"):
        yield Finding("stale", "not applicable", "the data set lists no files")
