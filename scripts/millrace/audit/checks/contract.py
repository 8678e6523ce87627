"""DP4 to DP9, DP15 and stale, judged: ragged samples, pinning, start methods, lengths, a batch of
one, growing memory, room for batches, and files that are gone."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate, takewhile
from typing import NamedTuple

from millrace.audit.checks.findings import (
    Finding,
    Findings,
    Seen,
    check,
    failed,
    inapplicable,
    passed,
    undecided,
)
from millrace.audit.checks.records import Epoch
from millrace.audit.checks.shares import share_of_rank
from millrace.common.errors import counted

NO_BATCH = "no batch could be made in one process"
FEWEST = 8  # measurements that show a growth
SMALL = 512  # bytes a sample that allocators may account for
COUNT_STEPS = (
    "let __len__ of the batch_sampler (or of your loader) count the batches of an epoch on this"
    " rank, and __len__ of a sampler its indices"
)


def _mib(size: float) -> str:
    return f"{size / 2**20:.1f} MiB" if size < 2**30 else f"{size / 2**30:.1f} GiB"


@check("DP4", "contract")
def ragged(seen: Seen) -> Finding:
    """Samples of a batch have one shape, or are padded."""
    read = seen["collate"]
    if read.get("failed"):
        return _uncollated(read["failed"])
    if not read["batches"] and "raised" in read:
        return undecided(NO_BATCH, "samples without workers", read["raised"])
    if not read["batches"]:
        return inapplicable("the loader gives no batch")

    return passed(f"{counted(read['batches'], 'batch')} collated")


def _uncollated(error: Seen) -> Finding:
    """The collate function raised: a bug if it is torch's, which stacks samples."""
    cause = f"collate_fn raises {error['text']}"
    if error["by_default"]:
        return failed(cause, error)
    return undecided(cause, "a collate_fn that takes the samples of a batch without workers", error)


@check("DP5", "contract")
def pinning(seen: Seen) -> Finding:
    """All tensors of a batch are pinned, if any shall be."""
    if not seen["pin_memory"]:
        return inapplicable("pin_memory=False")
    pin = seen["collate"].get("pin")
    if pin is None:
        return undecided(NO_BATCH, "a batch without workers")
    problem = _unpinned(pin)
    if not problem:
        return passed(f"{pin['pinned']} tensors are pinned")
    cause = f"{problem} (the batch is a {pin['type']})"
    raised = pin.get("raised", {}).get("text", "")
    if re.search("cuda|driver|accelerator", raised, re.IGNORECASE):
        return undecided(cause, "a machine with a GPU", pin)
    return failed(cause, pin)


def _unpinned(pin: Seen) -> str:
    """What is wrong with a batch that was pinned."""
    if pin.get("raised"):
        return f"pinning raises {pin['raised']['text']}"
    if pin["lost"] and pin["none"]:
        return ".pin_memory() returns None"
    if pin["lost"]:
        return f".pin_memory() loses {', '.join(pin['lost'])}"
    return f"not pinned: {', '.join(pin['missed'])}" if pin["missed"] else ""


@check("DP6", "methods")
def start_methods(seen: Seen) -> Findings:
    """Workers give equal samples however they are started."""
    if not seen["workers"]:
        return inapplicable("num_workers=0: nothing is sent to workers")

    runs = seen["runs"]
    if runs and all("raised" in run for run in runs):
        cause = f"workers raise however they start: {runs[0]['raised']['text']}"
        return undecided(cause, "workers that do not")

    own = seen["own"]
    elsewhere = []
    fails = []
    for problem in _problems(seen):
        cause = f"under {' and '.join(problem.methods)}: {problem.cause}"
        if own in (None, *problem.methods):
            fails.append(failed(cause, problem.raised))
        else:
            elsewhere.append(cause)
    if fails:
        return fails
    if seen["open"] and own in (None, "fork"):
        place = seen["open"][0]
        cause = f"{place} is open before the fork: workers that do not reopen it share its position"
        return undecided(cause, "a data set that opens it at first use in the worker")
    return passed("; ".join([f"equal samples under {own or 'fork and spawn'}", *elsewhere]))


class Problem(NamedTuple):
    """What goes wrong if workers are started by some methods."""

    methods: list[str]
    cause: str
    raised: Seen | None = None


def _problems(seen: Seen) -> list[Problem]:
    problems = []
    for bad in seen["pickled"]:
        cause = f"{bad['name']} cannot be pickled: {bad['text']}"
        problems.append(Problem(["spawn", "forkserver"], cause))
    if seen["runs"] and not any("raised" in run for run in seen["runs"][:2]):
        problems += _when_sent(seen)
    return problems


def _when_sent(seen: Seen) -> Iterator[Problem]:
    """What is wrong with samples of workers to which the loader was sent."""
    fork, again, run = seen["runs"]
    if "raised" in run:
        yield Problem([seen["sent"]], run["raised"]["text"][:300], run["raised"])
        return
    fields = _differing(fork, again, run)
    if fields:
        cause = f"samples differ from those of fork in {', '.join(fields)}: what is pickled, or "
        cause += "imported anew, lacks something"
        yield Problem([seen["sent"]], cause)


def _differing(fork: Seen, again: Seen, run: Seen) -> list[str]:
    """Fields of which a method gives other contents than two forks, which agree.

    A field that is random in the method too may differ: only the seeds of torch are equal.
    """
    fields = set()
    for place, contents in run["digests"].items():
        of_fork = fork["digests"].get(place)
        is_stable = of_fork and of_fork == again["digests"].get(place)
        if is_stable and contents[0] == contents[-1] != of_fork[0]:
            fields.add(place.rpartition(": ")[2] or "the sample")
    return sorted(fields)


@check("DP7", "look", "epochs")
def steps(look: Seen, epochs: list[list[Epoch]]) -> Iterator[Finding]:
    """An epoch has as many batches as the loader says."""
    if look.get("iterable"):
        return
    for rank, of_rank in enumerate(epochs):
        # An epoch that was left may have closed a generator, with which the next one goes on.
        whole = takewhile(lambda epoch: epoch.ended, of_rank)
        wrong = [number for number, epoch in enumerate(whole) if not _is_as_long(epoch)]
        if not wrong:
            continue
        epoch = of_rank[wrong[0]]
        came = counted(len(epoch.batches), "batch")
        cause = f"len(loader) is {epoch.length}, rank {rank} got {came}"
        if wrong[0] > 0:
            cause += f" in epoch {wrong[0]}"
        if look["wrapped"] and _counts_samples(epoch):
            yield undecided(cause, "whether it counts samples: no loop takes it for steps")
        else:
            yield failed(cause, fix=COUNT_STEPS)


def _is_as_long(epoch: Epoch) -> bool:
    """Whether an epoch that was read to its end has as many batches as the loader says."""
    return epoch.length in (None, len(epoch.batches))


def _counts_samples(epoch: Epoch) -> bool:
    """Whether the length of a loader is that of its data set, of which a rest may be dropped."""
    sizes = [batch.size for batch in epoch.batches]
    dropped = (epoch.length or 0) - sum(sizes)
    return 0 <= dropped < max(sizes, default=0)


@check("DP7", "contract")
def lengths(seen: Seen) -> Finding:
    """The data set has as many samples as it says."""
    size = seen["samples"]
    items = seen.get("items", {})
    given = seen.get("counted", size)
    if size is None:
        return inapplicable("the data set has no len")
    if given not in (None, size):
        return failed(f"len is {size}, the iterator gives {counted(given, 'sample')}")
    last = items.get("last", {})
    if last.get("type") in ("IndexError", "KeyError"):
        return failed(f"len is {size}, but [{size - 1}] raises {last['text']}", last)
    place = items.get("equals")
    if place is not None and not _repeats_on_purpose(size, items):
        cause = f"len is {size}, but [{size}] gives sample {place} again: it wraps around"
        return _wrapped(cause, items["varies"])
    if items.get("longer"):
        return _too_short(size, items["longer"], items["tables"])
    return passed(f"len is {size}")


def _wrapped(cause: str, varies: bool) -> Finding:
    """The finding of indices that begin again: an epoch of random draws may be as long as it
    likes."""
    if varies:
        return undecided(cause, "whether the length is meant: each read of an index differs")
    return failed(cause)


def _repeats_on_purpose(size: int, items: Seen) -> bool:
    """Whether an attribute, or a length that is a product, says how often items are given."""
    factors = {number for number in items["numbers"].values() if number > 1}
    times = [size // many for many in items["lists"].values() if size % many == 0]
    return any(often in factors or (items["product"] and often > 1) for often in times)


def _too_short(size: int, longer: dict[str, int], tables: list[str]) -> Finding:
    """A list has more items than the length: one more is a bug, several may be meant, and one more
    offset may be the end of the last row."""
    name, many = next(iter(longer.items()))
    cause = f"len is {size}, but {name} has {many} items, and [{many - 1}] works"
    if many == size + 1 and name not in tables:
        return failed(cause)
    return undecided(cause, "whether the shorter length is meant")


@check("DP8", "edges", "epochs")
def batch_of_one(seen: Seen, epochs: list[list[Epoch]]) -> Finding:
    """No batch of one meets a batch norm."""
    one = seen["one"]
    ones = {}  # a step of each rank that has one
    for rank, of_rank in enumerate(epochs):
        for epoch in of_rank:
            step = _step_of_one(epoch, seen["train"], "raised" in one)
            if step is not None:
                ones[rank] = step
    if not ones:
        return passed("no rank gets a batch of one")

    steps = ", ".join(f"rank {rank}: step {step}" for rank, step in ones.items())
    where = f"a batch of one ({steps})"
    shown = {**seen["train"], **one}
    if "raised" in one:
        return failed(f"{where} raises {one['raised']['text']}", shown)
    if one.get("taken"):
        return passed(f"the model takes {where}")
    if one.get("norms") == []:
        return passed(f"{where}, and the model has no batch norm")
    cause = f"{where}: BatchNorm with one value a channel would raise"
    if "unknown" in one:
        cause += f"; {one['unknown']}"
    return undecided(cause, "the model: --model module:factory", shown)


def _step_of_one(epoch: Epoch, loader: Seen, is_refused: bool) -> int | None:
    """The step that has a batch of one; `is_refused`: the model raises on it."""
    sizes = [batch.size for batch in epoch.batches]
    if 1 in sizes and (max(sizes) > 1 or is_refused):
        return sizes.index(1)
    # Of an epoch that was not read to its end, the last batch is computed.
    if epoch.ended or loader.get("iterable", True) or loader["drop_last"]:
        return None
    size = loader["batch_size"]
    if not size or not loader["samples"]:  # a sampler without an end has no length
        return None
    share = share_of_rank(loader)
    return share // size if share % size == 1 else None


class Chunk(NamedTuple):
    """What a worker holds after some more samples."""

    samples: int
    held: int  # bytes


class Memory(NamedTuple):
    """What a worker held as it read samples that were new to it."""

    new: list[Chunk]
    samples: int | None  # of the data set
    workers: int
    ranks: int
    persistent: bool
    split: bool  # over the ranks
    most: int | None  # entries that the source speaks of; 0: of an unknown number
    machine: int  # bytes

    def at_bound(self) -> tuple[list[Chunk], list[Chunk]]:
        """What was read before and after the `most` entries that the source speaks of."""
        counts = list(accumulate(chunk.samples for chunk in self.new))
        place = bisect_right(counts, self.most or 0)
        return self.new[: place + 1], self.new[place:]

    def copies(self) -> tuple[int, str]:
        """How many copies of the growth there are, and why."""
        ranks = counted(self.ranks, "rank")
        if self.persistent:
            workers = max(1, self.workers)
            return workers * self.ranks, f"{counted(workers, 'worker')} x {ranks}"
        # Workers that end with the epoch have together read each sample once a rank, or once if
        # ranks share.
        if self.split:
            return 1, "ranks and workers share the samples and end with the epoch"
        return self.ranks, f"{ranks}, whose workers share the samples and end with the epoch"


@check("DP9", "memory")
def memory(data: Memory) -> Finding:
    """Workers do not grow with the samples that they read, or not too much."""
    if not data.new:
        return inapplicable("no sample was read")
    grown = _slope(data.new)
    if grown < SMALL:
        return passed("no growth with new samples")

    cause = f"a worker grows by {grown:.0f} bytes per new sample"
    if data.samples is None:
        return undecided(cause, "the number of samples: __len__")
    factor, why = data.copies()
    total = grown * data.samples * factor
    cause += f": {_mib(total)} for {data.samples} samples x {factor} ({why}), "
    cause += f"of {_mib(data.machine)}"
    if total <= data.machine:
        return passed(cause)
    if data.most is None:
        return failed(cause)
    return _bounded(data, cause)


def _bounded(data: Memory, cause: str) -> Finding:
    """Judge growth that would be too much, of a data set whose source speaks of a bound: only what
    was measured beyond it says whether it holds."""
    if data.most == 0:
        return undecided(cause, "the most entries that its cache takes")
    before, beyond = data.at_bound()
    if len(beyond) < FEWEST:
        needs = f"whether the growth ends after {data.most} samples: a longer --timeout"
        return undecided(cause, needs)
    # Allocators settle for a while after a cache is full.
    if _slope(beyond) < max(SMALL, _slope(before) / 3):
        return passed(f"the growth ends after {data.most} samples")
    return failed(cause)


def _slope(chunks: list[Chunk]) -> float:
    """Bytes of growth per sample, 0 unless both halves grow. The first fifth is left out: imports
    and first calls."""
    chunks = chunks[len(chunks) // 5 :]
    if len(chunks) < 4:
        return 0.0
    middle = len(chunks) // 2
    slopes = []
    for half in (chunks[: middle + 1], chunks[middle:]):
        grown = half[-1].held - half[0].held
        slopes.append(grown / sum(chunk.samples for chunk in half[1:]))
    low, high = sorted(slopes)
    is_steady = low > 0 and low > high / 4
    return (low + high) / 2 if is_steady else 0.0


@check("DP15", "contract")
def shared_memory(seen: Seen) -> Iterator[Finding]:
    """The batches in flight find room, and files to open."""
    if not seen["workers"]:
        yield inapplicable("num_workers is 0: no batch crosses in shared memory")
        return
    if seen["shm"] is None:
        yield inapplicable("there is no /dev/shm here")
        return
    read = seen["collate"]
    if not read["batches"]:
        yield undecided(NO_BATCH, "a batch without workers")
        return

    # Each storage is an open file. Beside the batches made ahead, the loop then has two while it
    # asks for the next.
    are_files = seen["strategy"] == "file_descriptor"
    of_loop = 1 + are_files
    most = seen["workers"] * seen["prefetch"] + of_loop
    flying = min(most, seen["steps"] or most)
    needed = read["bytes"] * flying * seen["ranks"]
    cause = f"{_mib(read['bytes'])} a batch x {flying} ({counted(seen['workers'], 'worker')} x "
    cause += f"prefetch_factor {seen['prefetch']}, and {of_loop} in the loop) x "
    cause += f"{counted(seen['ranks'], 'rank')} = "
    cause += f"{_mib(needed)}; /dev/shm: {_mib(seen['shm'])} free"
    yield failed(cause) if needed > seen["shm"] else passed(cause)

    # A worker has the descriptors of its batches until they are fetched, the loop those of batches
    # that came out of turn.
    of_worker = seen["prefetch"] + 1
    out_of_turn = seen["prefetch"] * (seen["workers"] - 1) + 2
    waiting = min(flying, max(of_worker, out_of_turn))
    wanted = seen["open"] + 4 * seen["workers"] + waiting * read["tensors"]
    if are_files and wanted > seen["files"]:
        cause = f"{read['tensors']} tensors a batch x {waiting} batches in a process: "
        cause += f"{wanted} open files, ulimit -n is {seen['files']}"
        yield failed(cause)


@check("stale", "contract")
def stale(seen: Seen) -> Findings:
    """The files that a data set lists exist."""
    if not seen["paths"]:
        return inapplicable("the data set lists no files")
    return [_listed(paths) for paths in seen["paths"]]


def _listed(paths: Seen) -> Finding:
    if not paths["missing"]:
        return passed(f"no file of {paths['paths']} in {paths['name']} is missing")
    cause = f"{paths['missing']} of {paths['paths']} files in {paths['name']} are missing"
    if not paths["needed"]:
        return passed(f"{cause}, and the data set does without them")
    return failed(f"{cause}: {', '.join(paths['names'])}", paths)
