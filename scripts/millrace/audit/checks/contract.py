"""Checks of what a loader promises: DP4 to DP9, DP15, lost samples, files that are gone."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate

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
    if not seen["workers"]:
        cause = (
            NO_LOADER if seen["workers"] is None else "num_workers=0: nothing is sent to workers"
        )
        yield Finding("DP6", "not applicable", cause)
        return
    own, runs = seen["own"], seen["runs"]
    problems: dict[str, tuple[list[str], Seen]] = {}  # by cause: start methods and evidence
    for bad in seen["pickled"]:
        cause = f"{bad['path']} ({bad['what']}) cannot be pickled: {bad['text']}"
        problems[cause] = (["spawn", "forkserver"], bad)
    for path in seen["files"]:
        problems[f"{path} is an open file, whose position forked workers share"] = (
            ["fork"],
            {"path": path},
        )
    for method in ("spawn", "forkserver"):
        if method in runs and (bad := _changed(runs["fork"], runs["fork again"], runs[method])):
            problems.setdefault(bad["text"], ([], bad))[0].append(method)
    compared = own or ("fork, spawn and forkserver" if "forkserver" in runs else "fork and spawn")
    passed = [f"equal samples under {compared}"]
    for cause, (names, shown) in problems.items():
        said = f"under {' and '.join(names)}: {cause}"
        if own in (None, *names):
            passed = []
            yield Finding("DP6", "fail", said, shown)
        elif passed:
            passed.append(said)
    if passed:
        yield Finding("DP6", "pass", "; ".join(passed))


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
    for rank, data in enumerate(epochs):
        for epoch in data["plain"][:1]:
            batches, said = len(epoch["notes"]), epoch["length"]
            if epoch["ended"] and said not in (None, batches) and not look.get("iterable"):
                cause = f"len(loader) is {said}, rank {rank} got {batches} batches"
                yield Finding("DP7", "fail", cause, {"rank": rank, "len": said, "batches": batches})


@check("DP7", probes=("contract",))
def lengths(seen: Seen) -> Iterator[Finding]:
    size, read, counted = seen.get("samples"), seen.get("items", {}), seen.get("counted")
    last, lists, numbers = (read.get(name, {}) for name in ("last", "lists", "numbers"))
    place = read.get("equals")
    # A data set that repeats its items on purpose says how often.
    repeats = any(
        many > 1 and size == many * each for many in numbers.values() for each in lists.values()
    )
    shown: Seen = {"len": size}
    if size is None:
        yield Finding("DP7", "not applicable", "the data set has no len")
    elif counted not in (None, size):
        cause = f"len is {size}, the iterator gives {counted} samples"
        yield Finding("DP7", "fail", cause, {**shown, "samples": counted})
    elif last.get("type") in ("IndexError", "KeyError"):
        yield Finding("DP7", "fail", f"len is {size}, but [{size - 1}] raises {_told(last)}", last)
    elif place is not None and not repeats:
        cause = f"len is {size}, but [{size}] gives sample {place} again: it wraps around"
        yield Finding("DP7", "fail", cause, {**shown, "index": size, "equals": place})
    elif place is None and read.get("longer"):
        name, many = next(iter(read["longer"].items()))
        cause = f"len is {size}, but {name} has {many} items, and [{many - 1}] works"
        stored = [each for each, value in numbers.items() if value == size]
        meant = many > size + 1 and (not stored or any(map(MEANT.search, stored)))
        needs = "whether the shorter length is meant" if meant else ""
        shown |= {name: many, "stored": stored}
        yield Finding("DP7", "not decidable" if meant else "fail", cause, shown, needs=needs)
    else:
        yield Finding("DP7", "pass", f"len is {size}")


@check("DP8", probes=("model", "epochs"))
def batch_of_one(seen: Seen, epochs: Ranks) -> Iterator[Finding]:
    ones, loader, one = {}, seen["train"], seen.get("one", {})
    for rank, data in enumerate(epochs):
        for epoch in data["plain"]:
            sizes = [note["size"] for note in epoch["notes"]]
            if 1 in sizes and (max(sizes) > 1 or "raised" in one):
                ones[f"rank {rank}"] = sizes.index(1)
            elif (
                not epoch["ended"] and not loader.get("iterable", True) and not loader["drop_last"]
            ):
                share = -(-loader["samples"] // loader["replicas"])
                if (
                    loader["batch_size"]
                    and share % loader["batch_size"] == 1 != loader["batch_size"]
                ):
                    ones[f"rank {rank}"] = share // loader["batch_size"]
    where = (
        "a batch of one (" + ", ".join(f"{rank}: step {step}" for rank, step in ones.items()) + ")"
    )
    shown = {**loader, "steps": ones, **one}
    if not ones:
        yield Finding("DP8", "pass", "no rank gets a batch of one")
    elif raised := one.get("raised"):
        yield Finding("DP8", "fail", f"{where} raises {_told(raised)}", shown)
    elif "shapes" in one:
        yield Finding("DP8", "pass", f"the model takes {where}", shown)
    elif one.get("norms") == []:
        yield Finding("DP8", "pass", f"{where}, and the model has no batch norm", shown)
    else:
        cause = f"{where}: BatchNorm with one value a channel would raise"
        cause += f"; {one['unknown']}" if "unknown" in one else ""
        yield Finding(
            "DP8", "not decidable", cause, shown, needs="the model: --model module:factory"
        )


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
    findings = []
    for rank, data in enumerate(epochs):
        if any(epoch["ended"] and not epoch["notes"] for epoch in data["plain"][:1]):
            facts = {"rank": rank, **seen["train"]}
            findings.append(Finding("edges", "fail", f"rank {rank} makes no step", facts))
    for name, verdict in (("train", "pass"), ("val", "fail")):
        loader = seen[name]
        sized = loader.get("drop_last") and loader["samples"] and loader["batch_size"]
        if sized and (lost := loader["samples"] % loader["batch_size"]):
            cause = (
                f"drop_last=True on the {name} loader loses {lost} of {loader['samples']} samples"
            )
            findings.append(Finding("edges", verdict, cause, loader))
    yield from findings or [Finding("edges", "pass", "no sample is lost")]


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
