"""Epochs: as the loader gives them, told by set_epoch, in the user's loop, of a few samples, and
without workers; which fields are the same whenever they are read."""

from __future__ import annotations

import random
import signal
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice, takewhile
from typing import Any

import torch
from torch.utils.data import DataLoader, Sampler

from millrace.audit.probes.batches import is_name, order
from millrace.audit.runner.digest import digest, fields, is_array
from millrace.audit.runner.listener import (
    MOST_OF_EPOCH,
    Indices,
    Listener,
    index_list,
    is_stream,
    length,
    noting,
)
from millrace.audit.runner.probes import Seen
from millrace.audit.runner.target import Rank, Target
from millrace.audit.runner.walk import walk

MOST_BATCHES = 50  # show whether an order changes
MOST = 20_000  # samples of a stream
MOST_ROWS = 1000  # of a dataset with indices
FEW = 1000  # things that were shuffled tell one order from another
EPOCH_NAMES = (".epoch", "._epoch", ".current_epoch")  # not samples_per_epoch
FLAGS = ("shuffle", "_shuffle")  # attributes that say whether an order is meant to change
FRAMEWORKS = ("accelerate", "lightning", "pytorch_lightning", "transformers")
PLACES = (
    "sampler",
    "sampler.sampler",
    "batch_sampler",
    "batch_sampler.sampler",
    "dataset",
    "batch_sampler.batch_sampler.sampler",
)

Samples = list[dict[str, str]]  # digests of their fields
Notes = list[list[Seen]]  # of the batches of each epoch


def epochs(target: Target, rank: Rank) -> list[Seen]:
    """Notes of each epoch of the loader alone, `ended` (False: only its beginning was read), and
    `left` (True: the DataLoader behind it had not ended).
    None follows one after which there was no time for persistent workers."""
    options = target.options
    loader = target.loader()
    tap = Listener(loader, rank, options.workers, options.start_method)
    seen = []
    rank.all_agree(True)  # to begin together
    may_seed = getattr(tap.original, "worker_init_fn", None) is not None
    for epoch in range(options.epochs):
        # Seeds by the clock, in seconds, differ between epochs that last longer than these.
        if epoch and may_seed:
            time.sleep(1)
        promised = length(loader)
        tap.run(share=1 / (options.epochs - epoch))
        batches = tap.notes(epoch)
        # A sampler knows what it gives before an epoch, or only as it begins. What counts the
        # samples that are left may fall below 0, and then raises.
        later = length(loader)
        if promised != len(batches) and later is not None:
            promised = later
        ends = {"ended": tap.ended[epoch], "left": tap.is_left()}
        seen.append({"batches": batches, "length": promised, **ends})
        if not rank.all_agree(not tap.lost_workers):
            break
    tap.close()
    return seen


def set_epoch(target: Target, rank: Rank) -> Seen:
    """Notes after set_epoch(0), set_epoch(1) and so on: `own`, and `main` if persistent workers may
    miss it.

    `parts`: what has set_epoch. `flags`: those of FLAGS that samplers and dataset have.
    `numbers`: attributes of a stream that may be the number of its epoch.
    """
    options = target.options
    tap = Listener(
        target.loader(), rank, options.workers, options.start_method, max_batches=MOST_BATCHES
    )
    seen: Seen = {"parts": list(parts(tap, "set_epoch")), "flags": {}}
    if tap.original is not None and is_stream(tap.original):
        seen["numbers"] = [path for path, _ in _epoch_numbers(tap.original.dataset)]
    for place, part in parts(tap).items():
        for name in FLAGS:
            if isinstance(getattr(part, name, None), bool):
                seen["flags"][f"{place}.{name}"] = getattr(part, name)
    if seen["parts"]:
        # One that keeps its iterator draws ahead: it hears of an epoch one late.
        seen["own"] = _notes(tap, (0, 1, 2) if tap.core is None else (0, 1))
    is_copied = any(part.startswith("dataset") for part in seen["parts"])
    if is_copied and tap.core is not None and tap.core.persistent_workers:
        main = Listener(target.loader(), rank, workers=0, max_batches=MOST_BATCHES)
        # Epoch 0 twice: what differs between the two is random, and not the epoch's.
        seen["main"] = _notes(main, (0, 1, 0))
    return seen


def loop(target: Target, rank: Rank) -> Seen:
    """Run the user's loop over the loader. `calls`: what was told which epoch. `orders`: what the
    sampler gave in each epoch of it, `numbers`: what a stream said then of its epoch. `ended`: it
    was run to its end. `joins`: it uses Join.

    `evaluation`: what the sampler of --val-loader draws, of several ranks.
    """
    seen: Seen = {
        "calls": None,
        "orders": [],
        "numbers": [],
        "ended": False,
        "joins": False,
        "evaluation": None,
    }
    if rank.world > 1:
        with suppress(Exception):  # there is none, or other probes say what it raises
            seen["evaluation"] = _drawn(target.val_loader())
    function = target.loop()
    if function is None:
        return seen

    from torch.distributed.algorithms import Join

    def joins(*_: Any) -> None:
        seen["joins"] = True

    seen["calls"] = []
    loader = target.loader()
    tap = Listener(loader, rank, 0)
    for name, listening in parts(tap, "set_epoch").items():
        part = loader if name == "loader" else listening
        call = partial(_noted, seen["calls"], name)
        part.set_epoch = noting(part.set_epoch, call)
    Join.__init__ = noting(Join.__init__, joins)
    if tap.original is not None and not is_stream(tap.original):
        seen["orders"] = _orders(tap.original)
    elif tap.original is not None:
        seen["numbers"] = _numbers(tap.original)
    # It may train for long: its first epochs say enough, and its workers need time to stop.
    # Again and again, as no error leaves a __del__.
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, max(1.0, 0.7 * rank.left()), 0.5)
    with suppress(KeyboardInterrupt):
        function(loader)
        seen["ended"] = True
    signal.setitimer(signal.ITIMER_REAL, 0)
    return seen


def _drawn(loader: DataLoader) -> Seen:
    """How many samples a loader holds, and the rows that its sampler draws of them on this
    rank."""
    samples = length(loader.dataset) or 0
    rows = [int(row) for row in islice(loader.sampler, samples + 1)]
    return {"sampler": type(loader.sampler).__name__, "samples": samples, "drawn": rows}


def _numbers(core: DataLoader) -> list[list[Any]]:
    """A list that has what a stream says of its epoch, each time that the loop begins one."""
    numbers: list[list[Any]] = []

    def note(loader: DataLoader) -> None:
        if loader is core:
            numbers.append(_epoch_numbers(core.dataset))

    DataLoader.__iter__ = noting(DataLoader.__iter__, note)
    return numbers


def _epoch_numbers(dataset: Any) -> list[list[Any]]:
    """What an object holds at any depth as the number of an epoch, by its path."""
    numbers = ((path, value) for path, value in walk(dataset, "dataset") if type(value) is int)
    return [[path, value] for path, value in numbers if path.endswith(EPOCH_NAMES)]


def _orders(core: DataLoader) -> list[list[list[Any]]]:
    """What the sampler of the user's loader hands out from now on, draw by draw, an order for each
    epoch."""
    name = "sampler" if core.batch_sampler is None else "batch_sampler"
    orders: list[list[list[Any]]] = []

    def begin() -> Callable[[Any], None]:
        order: list[list[Any]] = []
        orders.append(order)

        def note(drawn: Any) -> None:
            if len(order) < FEW:
                order.append(index_list(drawn))

        return note

    # A list is the user's to be shuffled in its place.
    sampler = getattr(core, name)
    if hasattr(sampler, "__dict__"):
        vars(core)[name] = Indices(sampler, begin)
    return orders


def _noted(calls: list, name: str, *args: Any) -> None:
    calls.append([name, *args])


def source(target: Target, rank: Rank) -> Seen:
    """Two passes: the `samples` of the first; `stable` fields are equal in both.

    `complete`: both ended. `all_drawn`: the sampler leaves none out. `drawn_again`: how often it
    draws rows, if more than once. `reordered`: the second pass had another order. `shuffled_by`:
    what made an order. `makes_batches`: it is a stream of batches.
    """
    tap = Listener(target.loader(), rank, workers=0)
    rows = _rows(tap.original)
    is_map = rows is not None
    calls = _shuffles()
    drawn, places = _asked(tap.original, rows)
    shuffled_by = list(calls)
    calls.clear()
    first, first_ended = _pass(tap, places, rank, rank.left() / 2)
    of_first = dict(calls)
    calls.clear()
    second, second_ended = _pass(tap, places, rank, 2.0)
    complete = first_ended and second_ended
    if not complete:
        first = first[: len(second)]
        second = second[: len(first)]
    stable = _stable(first, second, is_map)
    reordered = any(_column(name, first) != _column(name, second) for name in stable)
    if not is_map:  # a stream shuffles as it is read
        shuffled_by = [
            name
            for name, made in of_first.items()
            if _is_order(made, calls[name], len(first), reordered)
        ]
    return {
        "iterable": not is_map,
        "makes_batches": _makes_batches(tap.original),
        "rows": rows,
        "complete": complete and (rows is None or rows <= MOST_ROWS),
        "all_drawn": not is_map or len(drawn) == rows,
        "drawn_again": {row: count for row, count in drawn.items() if count > 1},
        "samples": first,
        "stable": stable,
        "reordered": reordered,
        "shuffled_by": shuffled_by,
        "frameworks": [name for name in FRAMEWORKS if name in sys.modules],
        "accelerated": is_accelerated(tap.view),
    }


def is_accelerated(loader: Any) -> bool:
    """Whether accelerate has prepared a loader, and shared it out over ranks."""
    return type(loader).__module__.startswith("accelerate.")


def _makes_batches(core: DataLoader | None) -> bool:
    return core is not None and is_stream(core) and core.batch_sampler is None


def _asked(core: DataLoader | None, rows: int | None) -> tuple[Counter[str], Sequence[Any] | None]:
    """How often an epoch draws what, and what is asked for one by one: rows, or names; of a stream
    nothing."""
    if core is None or rows is None:
        return Counter(), None
    handed = list(islice(order(core), MOST_OF_EPOCH))
    counts = Counter(str(index) for batch in handed for index in index_list(batch))
    drawn = handed
    if core.batch_sampler is not None:  # a tuple is a batch there, and a name without batches
        batches = [batch for batch in handed if isinstance(batch, (list, tuple))]
        drawn = [index for batch in batches for index in batch]
    if drawn and is_name(drawn[0]):
        return counts, sorted(set(drawn), key=str)[:MOST_ROWS]
    return counts, range(0, rows, max(1, rows // MOST_ROWS))


def _pass(
    tap: Listener, places: Sequence[Any] | None, rank: Rank, until: float
) -> tuple[Samples, bool]:
    """Samples, and whether they are all: none is read when less than `until` seconds are left."""
    samples = islice(_samples(tap, places), MOST)
    read = list(takewhile(lambda _: rank.left() > until, samples))
    return read, len(read) < MOST and rank.left() > until


def _column(name: str, samples: Samples) -> list[str | None]:
    return [sample.get(name) for sample in samples]


def _stable(first: Samples, second: Samples, in_order: bool) -> list[str]:
    """The fields that are the same in two passes, of streams in whatever order, and tell samples
    apart; "": the whole is the same."""
    stable = []
    for name in first[0] if first else ():
        ours = _column(name, first)
        theirs = _column(name, second)
        is_same = ours == theirs
        if not in_order:
            is_same = Counter(ours) == Counter(theirs)
        if is_same and (not name or len(set(ours)) > 1):
            stable.append(name)
    return stable


def _rows(core: DataLoader | None) -> int | None:
    """How long a dataset is that is asked for one sample at a time."""
    if core is None or is_stream(core):
        return None
    if core.batch_sampler is None:
        drawn = next(iter(core.sampler), 0)
        if isinstance(drawn, (list, tuple)):
            return None  # it is asked for whole batches
    return length(core.dataset)


def _samples(tap: Listener, places: Sequence[Any] | None) -> Iterator[dict[str, str]]:
    core = tap.original
    if core is not None and places is not None:
        for place in places:
            yield fields(core.dataset[place])
    elif core is not None and is_stream(core):
        yield from map(fields, core.dataset)
    else:
        tap.run()
        for note in tap.notes(len(tap.ended) - 1):
            yield from note["samples"]


def _is_order(first: list[str], second: list[str], samples: int, reordered: bool) -> bool:
    """Whether a function made an order of samples, by what it made in two passes of a stream.

    What is called for each sample made none; nor did what made something else in the second pass,
    and left the order as it was.
    """
    if 2 * len(first) >= samples:
        return False
    return reordered or not set(first).isdisjoint(second)


def _shuffles() -> dict[str, list[str]]:
    """Digests of what the functions that put things into a random order make, from now on in this
    process."""
    holders = {
        "torch": torch,
        "random": random,
        "Random": random.Random,
    }
    if "numpy" in sys.modules:
        holders["numpy.random"] = sys.modules["numpy"].random
    calls: dict[str, list[str]] = defaultdict(list)
    for place, holder in holders.items():
        for name in {"shuffle", "permutation", "randperm"} & vars(holder).keys():
            setattr(holder, name, _shuffling(vars(holder)[name], calls, f"{place}.{name}"))
    return calls


def _shuffling(function: Callable, calls: dict[str, list[str]], name: str) -> Callable:
    """The function, which notes what it has made: its result, or what it was given to shuffle."""

    def called(*args: Any, **named: Any) -> Any:
        result = function(*args, **named)
        made = [*args, *named.values()][-1] if result is None else result
        # An array at once: a stream may shuffle for every sample.
        beginning = made[:FEW] if is_array(made) else list(islice(made, FEW))
        calls[name].append(digest(beginning))
        return result

    return called


def parts(tap: Listener, method: str = "") -> Seen:
    """The loader itself, its samplers and dataset by their places; those that have the method, if
    named."""
    listed: Seen = {"loader": tap.view}
    for place in PLACES:
        # A loader that keeps its iterator is not listened to, but its sampler can be told.
        part = tap.view if method and tap.original is None else tap.original
        for name in place.split("."):
            part = getattr(part, name, None)
        if part is not None and all(part is not known for known in listed.values()):
            listed[place] = part
    listed |= _held_samplers(tap.original)
    return {
        name: part
        for name, part in listed.items()
        if not method or callable(getattr(part, method, None))
    }


def _held_samplers(core: DataLoader | None) -> Seen:
    """The samplers that a stream reads by, by their places; none if it has set_epoch, which is to
    tell them."""
    if core is None or not is_stream(core) or hasattr(core.dataset, "set_epoch"):
        return {}
    held = walk(core.dataset, "dataset", limit=200)
    return {place: part for place, part in held if isinstance(part, Sampler)}


def tell_epoch(tap: Listener, number: int) -> None:
    """Call set_epoch on all parts that have it."""
    for part in parts(tap, "set_epoch").values():
        part.set_epoch(number)


def _notes(tap: Listener, numbers: tuple[int, ...]) -> Notes:
    for number in numbers:
        tell_epoch(tap, number)
        tap.run()
    tap.close()
    return [tap.notes(epoch) for epoch in range(len(numbers))]
