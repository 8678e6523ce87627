"""Reads a loader's batches, with so many workers at most, and notes how they came about: worker,
indices, contents and random states."""

from __future__ import annotations

import multiprocessing.connection
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from millrace.audit.runner.digest import digest, fields, members, rows, walk_tensors
from millrace.audit.runner.probes import COLLATE, Seen
from millrace.audit.runner.target import Rank
from millrace.audit.runner.walk import walk
from millrace.common import processes

RESERVE = 1.0  # seconds of a probe's time that are kept for writing down what it saw
MOST_WORKERS = 2  # show what more would show
SEED = 20
MOST_OF_EPOCH = 1000  # batches that are read


class Listener:
    """A loader that is listened to. The user's object stays as it is; its own collate_fn,
    worker_init_fn, sampler and generator are in use.

    `workers` (None: the loader's own, but at most 2) and `start_method` replace the loader's own
    where they are given.
    """

    def __init__(
        self,
        loader: Any,
        rank: Rank,
        workers: int | None = None,
        start_method: str = "",
        *,
        max_batches: int = MOST_OF_EPOCH,
    ) -> None:
        self.rank = rank
        self.max_batches = max_batches
        self.workers = workers
        self.start_method = start_method
        # The DataLoader that is listened to, if there is one, and the user's own behind it.
        self.core: DataLoader | None = None
        self.original: DataLoader | None = None
        self.drawn: list[Any] = []
        self.made: list[Seen] = []
        self.view = self._wrapped(loader)
        self._notes: list[list[Seen]] = []
        self.iterator: Any = None  # of the epoch that is read
        self.restored: Any = None  # an iterator that the next epoch goes on with
        self.ended: list[bool] = []  # of each epoch: False if it was left before its end
        self.lost_workers = False  # persistent ones were ended between epochs
        self.spent = False  # the DataLoader came to the end of its epoch

    def epoch(self, share: float = 1.0) -> Iterator[Any]:
        """The user's batches, untouched; at most `max_batches`, and for this share of the time
        left."""
        self.drawn.clear()
        self.made.clear()
        self.spent = False
        notes: list[Seen] = []
        self._notes.append(notes)
        self.ended.append(False)
        core = self.core
        original = self.original
        if core is not None and original is not None and core.num_workers == 0:
            self.functions.start = states(generators(core.dataset, original.collate_fn))
        slowest = 0.0
        before = time.monotonic()
        reserve = RESERVE + (1 - share) * self.rank.left()
        self.iterator = iter(self.view) if self.restored is None else self.restored
        self.restored = None
        for step, given in enumerate(self.iterator):
            # A loader that was made of this one's functions gives notes.
            batch = self._taken(given) if isinstance(given, Noted) else given
            note: Seen = {"batch": digest(batch), "size": batch_size(batch)}
            if hasattr(type(self.view), "sample_ids"):
                ids = list(map(str, self.view.sample_ids(batch)))
                note |= {"indices": ids, "named": True, "size": len(ids)}
            elif not any(made["batch"] == note["batch"] for made in reversed(self.made)):
                # Nobody has seen its samples before they were collated.
                note["rows"] = rows(batch)
            notes.append(note)
            yield batch
            slowest = max(slowest, time.monotonic() - before)
            before = time.monotonic()
            if step + 1 >= self.max_batches or self.rank.left() < reserve + 2 * slowest:
                self._leave(slowest)
                break
        else:
            self.ended[-1] = True
        self.iterator = None
        self._join(notes)

    def run(self, share: float = 1.0) -> None:
        """Read one epoch."""
        for _ in self.epoch(share):
            pass

    def is_left(self) -> bool:
        """Whether the epoch ended before that of the DataLoader: a wrapper counts steps. One that
        reads nothing here, but on another rank, ends with that."""
        if self.core is None or self.spent or not self.made:
            return False
        batches = length(self.core)
        return batches is None or len(self.made) < batches

    def notes(self, epoch: int) -> list[Seen]:
        """How the batches of an epoch (0: the first that was read) came about, in order."""
        return self._notes[epoch]

    def _leave(self, slowest: float) -> None:
        """End an epoch before its end; `slowest`: seconds that a batch took."""
        core = self.core
        if core is not None and core.persistent_workers:
            # They are those of the next epoch too, once they have made what they were asked for.
            seconds = slowest * (core.prefetch_factor + 2)
            if self.rank.left() > RESERVE + seconds:
                return
            self.lost_workers = True
        self.close()

    def close(self) -> None:
        """End the workers."""
        if self.core is not None:
            iterator = self.core._iterator
            self.core._iterator = None
            if hasattr(iterator, "_shutdown_workers"):
                iterator._shutdown_workers()

    def _wrapped(self, loader: Any) -> Any:
        if isinstance(loader, DataLoader) and not hasattr(loader, "base_dataloader"):
            # One that keeps its iterator for all epochs (Ultralytics') cannot be listened to.
            if "iterator" in vars(loader):
                return loader
            return self._listening(loader)
        # Loaders around a DataLoader: accelerate's, webdataset's WebLoader, our own.
        for name, value in list(getattr(loader, "__dict__", {}).items()):
            if isinstance(value, DataLoader):
                return _copy(loader, {name: self._listening(value)})
            if isinstance(value, list) and any(isinstance(part, DataLoader) for part in value):
                parts = [
                    self._listening(part) if isinstance(part, DataLoader) else part
                    for part in value
                ]
                return _copy(loader, {name: parts})
        return loader

    def _listening(self, loader: DataLoader) -> DataLoader:
        """A copy whose functions write notes and then call the user's."""
        if self.workers is None:
            workers = min(loader.num_workers, MOST_WORKERS)
        else:
            workers = self.workers
        changes: Seen = {"_iterator": None, "num_workers": workers}
        if workers == 0:
            changes |= {
                "prefetch_factor": None,
                "persistent_workers": False,
                "timeout": 0,
            }
        else:
            changes["prefetch_factor"] = loader.prefetch_factor or 2
            if self.start_method:
                context = torch.multiprocessing.get_context(self.start_method)
                changes["_DataLoader__multiprocessing_context"] = context
        if hasattr(
            loader, "_initial_iter_for_state_dict"
        ):  # torchdata's, once it was asked for its state
            changes["_initial_iter_for_state_dict"] = False
        self.functions = functions = Functions(loader)
        changes |= {"collate_fn": functions.collate_fn, "worker_init_fn": functions.worker_init_fn}
        if not is_stream(loader):
            name = "batch_sampler" if functions.batched else "sampler"
            changes[name] = Indices(getattr(loader, name), lambda: self.drawn.append)
        self.core = _copy(loader, changes)
        self.original = loader
        kind = type(loader)

        def get_iterator(core: DataLoader) -> Any:
            iterator = kind._get_iterator(core)
            own = type(iterator)

            def next_data(iterator: Any) -> Any:
                try:
                    return self._taken(own._next_data(iterator))
                except StopIteration:
                    self.spent = True
                    raise

            # By its class: an iterator that refers to itself would live on, and with it its
            # workers.
            methods = {"_next_data": next_data}
            iterator.__class__ = type(own.__name__, (own,), methods)
            return iterator

        methods = {"_get_iterator": get_iterator, "__module__": kind.__module__}
        self.core.__class__ = type(kind.__name__, (kind,), methods)
        return self.core

    def _taken(self, noted: Noted) -> Any:
        self.made.append(noted.note)
        return noted.batch

    def _join(self, notes: list[Seen]) -> None:
        """Add what is known of how each batch was made. Batches are known by content, equal ones by
        turn."""
        left: dict[str, list[Seen]] = {}
        for made in self.made:
            left.setdefault(made["batch"], []).append(made)
        # A wrapper that joins or cuts batches gives them in no turn of the loader's.
        is_other = bool(self.made) and abs(len(self.made) - len(notes)) > 1
        by_turn = not is_other and (self.core is None or not is_stream(self.core))
        for step, note in enumerate(notes):
            made = {}
            if alike := left.get(note["batch"]):
                made = alike.pop(0)
            elif step < len(self.made) and by_turn:
                # A wrapper makes other batches of them; indices are dealt in turn.
                made = self.made[step]
            samples = made.get("samples", note.pop("rows", None))
            note.update({"worker": None, **made, "batch": note["batch"]})
            if "indices" not in note:
                is_drawn = step < len(self.drawn) and not is_other
                note["indices"] = index_list(self.drawn[step]) if is_drawn else None
            if samples is not None and "named" not in note:
                note["size"] = len(samples)
            note["samples"] = samples or [{"": note["batch"]}]


class Noted(NamedTuple):
    """A batch on its way from the worker to the loop, and how it was made."""

    note: Seen
    batch: Any


class Indices:
    """A sampler that notes what it hands out, and is the user's in all else. `begin` is called as
    an epoch begins, and gives what notes the draws of it."""

    def __init__(self, sampler: Any, begin: Callable[[], Callable[[Any], None]]) -> None:
        vars(self).update(_noted=sampler, _begin=begin)

    def __iter__(self) -> Iterator[Any]:
        note = self._begin()
        for drawn in self._noted:
            note(drawn)
            yield drawn

    def __len__(self) -> int:
        return len(self._noted)

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return type(self._noted)

    def __getattr__(self, name: str) -> Any:
        if name == "_noted":
            raise AttributeError(name)
        return getattr(self._noted, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._noted, name, value)


class Functions:
    """The user's functions, which note samples, the batch that is made of them, and states of
    generators."""

    def __init__(self, loader: DataLoader) -> None:
        self.init = loader.worker_init_fn
        self.collate = loader.collate_fn
        self.batched = loader.batch_sampler is not None
        self.start: dict[str, str] = {}
        self.held: dict[str, Any] = {}  # which generators a worker began with, by their paths
        self.seeded: dict[str, str] = {}  # global states as a sample first seeded them

    def collate_fn(self, samples: Any) -> Noted:
        listed = samples if self.batched else [samples]
        digests = [fields(sample) for sample in listed]
        batch = self.collate(samples)
        info = get_worker_info()
        held = generators(info and info.dataset, self.collate)
        # What was made or seeded anew has not begun as the copy that the worker was given.
        for path in self.held.keys() & held:
            if self.held[path] != _seeding(held[path]):
                self.start.pop(path, None)
        random_states = states(held)
        # One that is put back as it was goes on as it would have: both must be equal elsewhere.
        start = dict(self.start)  # of this batch: it is pickled while the next one is made
        for name, seeded in self.seeded.items():
            start[name] = digest([seeded, random_states[name]])
        note = {
            "pid": os.getpid(),
            "samples": digests,
            "batch": digest(batch),
            "worker": info and info.id,
            "random": random_states,
            "start": start,
        }
        return Noted(note, batch)

    def worker_init_fn(self, worker: int) -> None:
        processes.die_with_parent(signal.SIGKILL)
        parent = multiprocessing.parent_process()
        threading.Thread(target=_die_with, args=[parent], daemon=True).start()
        if self.init is not None:
            self.init(worker)
        held = generators(get_worker_info().dataset, self.collate)
        self.start = states(held)
        self.held = {path: _seeding(generator) for path, generator in held.items()}
        python: Any = random.Random
        python.seed = noting(python.seed, self._forget_start)
        torch.manual_seed = self._noting_global("torch", torch.manual_seed)
        random.seed = self._noting_global("python", random.seed)
        if (numpy := sys.modules.get("numpy")) is not None:
            numpy.random.seed = self._noting_global("numpy", numpy.random.seed)

    def _forget_start(self, seeded: random.Random, *_: Any) -> None:
        """A generator that is seeded anew has not begun as its copy."""
        for path, (generator, _seed) in self.held.items():
            if generator is seeded:
                self.start.pop(path, None)

    def _noting_global(self, name: str, seed: Callable) -> Callable:
        """A seed() of torch, Python or NumPy, which also notes the state that it first gave."""

        def noted(*args: Any, **named: Any) -> Any:
            result = seed(*args, **named)
            if name not in self.seeded:
                self.seeded[name] = states({})[name]
            return result

        return noted


def noting(function: Callable, note: Callable) -> Callable:
    """The function, which calls `note` with its arguments first."""

    def called(*args: Any, **kwargs: Any) -> Any:
        note(*args, *kwargs.values())
        return function(*args, **kwargs)

    return called


def _die_with(process: Any) -> None:
    """End with the process that reads: a worker's parent may be a forkserver, which outlives it."""
    multiprocessing.connection.wait([process.sentinel])
    os._exit(1)


def is_stream(loader: DataLoader) -> bool:
    """Whether its data set gives samples without being asked for any."""
    return isinstance(loader.dataset, IterableDataset)


def reseed(seed: int = SEED) -> None:
    """Seed torch, Python and NumPy, so that the same samples are drawn again."""
    torch.manual_seed(seed)
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed)


def states(generators: Mapping[str, Any]) -> dict[str, str]:
    """Digests of the random states of torch, Python and NumPy, and of these generators."""
    seen = {"torch": digest(torch.get_rng_state()), "python": digest(random.getstate())}
    if (numpy := sys.modules.get("numpy")) is not None:
        seen["numpy"] = digest(numpy.random.get_state())
    for path, generator in generators.items():
        seen[path] = _state(generator)
    return seen


def generators(dataset: Any, collate: Any) -> dict[str, Any]:
    """The random generators that a data set and a collate_fn hold, by their paths."""
    held = {}
    for name, holder in (("", dataset), (COLLATE, collate)):
        for path, value in walk(holder, name, code=True):
            of_numpy = type(value).__module__.startswith("numpy.random")
            if of_numpy or isinstance(value, (torch.Generator, random.Random)):
                held[path] = value
    return held


def _seeding(generator: Any) -> tuple[Any, int | None]:
    """Which generator it is, and the seed of one of torch."""
    if isinstance(generator, torch.Generator):
        return generator, generator.initial_seed()
    return generator, None


def _state(generator: Any) -> str:
    holder = getattr(generator, "bit_generator", generator)
    names = ("state", "get_state", "getstate")
    state = next(getattr(holder, name) for name in names if hasattr(holder, name))
    return digest(state() if callable(state) else state)


def batch_size(batch: Any) -> int:
    """Samples of a batch: the first extent of its first tensor, else the length of its first
    list."""
    for _, tensor in walk_tensors(batch):
        if tensor.dim():
            return tensor.size(0)
        return 1
    for _, value in members(batch):
        if isinstance(value, (list, tuple)):
            return len(value)
    if isinstance(batch, (list, tuple)):
        return len(batch)
    return 1


def length(thing: Any) -> int | None:
    """What `len` says, or None."""
    try:
        return len(thing)
    except Exception:  # torch's is a TypeError, others' are what they like
        return None


def index_list(drawn: Any) -> list[Any]:
    """Sample indices of what a sampler handed out: an index, a list of them, or an object with
    `rows`, which are names: a data set that is asked for batches holds no samples by index."""
    if hasattr(drawn, "rows"):
        return list(map(str, drawn.rows))
    is_list = hasattr(drawn, "__iter__") and not isinstance(drawn, (str, bytes))
    indices: list[Any] = []
    for index in drawn if is_list else [drawn]:
        if hasattr(index, "__index__"):
            indices.append(int(index))
        else:
            indices.append(str(getattr(index, "id", index)))
    return indices


def _copy(loader: Any, changes: Seen) -> Any:
    """A shallow copy with other attributes; DataLoader lets nobody set them afterwards."""
    view = object.__new__(type(loader))
    view.__dict__.update({**loader.__dict__, **changes})
    return view
