"""One file a library: how its documentation says to open a loader, to save and to restore it."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

NAMES = (
    "millrace_buckets",
    "millrace_tars",
    "torchdata_sampler",
    "torchdata_nodes",
    "datasets_stream",
    "datasets_shuffled",
    "litdata",
    "lhotse",
    "grain_loader",
    "grain_dataset",
    "grain_elastic",
    "streaming",
    "webdataset",
)
"""The adapters, in the order of the table."""


class Setting(NamedTuple):
    """What all launches of a plan have in common.

    `folder`: where `write` has put the samples. `batch_size`: of a rank. `global_batch`: of all
    ranks, for libraries that ask for it to stay the same; all numbers of ranks divide it.
    """

    folder: Path
    samples: int
    batch_size: int
    global_batch: int
    seed: int = 0


class Place(NamedTuple):
    """Which rank of how many, and its workers."""

    rank: int
    world_size: int
    workers: int


class About(NamedTuple):
    """What is said of a library on the page.

    `promised`: the columns in which it says to go on exactly, perhaps none. `processes`: whether
    each rank must be a process of its own. `most_processes`: of workers in a launch, all ranks
    together, where they start slowly. `drops_rest`: whether it leaves out what does not fill a
    batch of every worker of every rank.
    """

    title: str
    packages: tuple[str, ...]
    follows: str
    promise: str
    promised: tuple[str, ...]
    processes: bool = False
    most_processes: int = 8
    has_state: bool = True
    drops_rest: bool = False


class Loader(Protocol):
    """A loader of one rank."""

    def batches(self, epoch: int) -> Iterator[list[int]]:
        """The samples' numbers of each batch, from where it stands; padding that is marked is
        not among them."""

    def state(self) -> Any:
        """What a checkpoint holds; it is pickled."""

    def restore(self, state: Any) -> None:
        """Go on from a checkpoint, before anything is read."""

    def close(self) -> None: ...


class Stateful:
    """Saved and restored by torch's protocol, which `loader` has; its workers end with its
    iterator."""

    loader: Any

    def state(self) -> Any:
        return self.loader.state_dict()

    def restore(self, state: Any) -> None:
        self.loader.load_state_dict(state)

    def close(self) -> None:
        self.loader._iterator = None


class OfMillrace:
    """Saved as JSON and restored of it; `loader` is one of ours."""

    loader: Any

    def state(self) -> str:
        return json.dumps(self.loader.state_dict())

    def restore(self, state: str) -> None:
        self.loader.load_state_dict(json.loads(state))

    def close(self) -> None:
        self.loader.close()


class Adapter(Protocol):
    """What a module here has."""

    ABOUT: About

    def write(self, folder: Path, samples: int) -> None:
        """Make a data set of samples 0, 1, … in a folder that is there."""

    def open(self, setting: Setting, place: Place) -> Loader: ...


def load(name: str) -> Adapter:
    """The adapter of a name. Raises ImportError if its packages are not installed."""
    return importlib.import_module(f"{__name__}.{name}")  # type: ignore[return-value]
