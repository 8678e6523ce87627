"""Loaders that keep their position in the ways of libraries. `lost`: batches that a restart
skips."""

from __future__ import annotations

import os
from collections.abc import Iterator

import torch

BATCHES = torch.arange(36).split(4)


class Batches:
    """The batches from a position on; it is an iterator, which begins again with iter()."""

    def __init__(self) -> None:
        self.start = self.given = 0

    def __iter__(self) -> Iterator[dict]:
        start, self.start = self.start, 0
        for self.given, ids in enumerate(BATCHES[start:], start=start + 1):
            yield {"id": ids}
        self.given = 0


class Energon(Batches):
    """The methods of Megatron Energon's SavableDataLoader."""

    def __init__(self, lost: int = 0) -> None:
        super().__init__()
        self.lost = lost

    def save_state_rank(self) -> dict:
        return {"given": self.given}

    def restore_state_rank(self, state: dict) -> None:
        self.start = state["given"] + self.lost


class Exhausted(Energon):
    """Has nothing to give to the last rank from the second pass on."""

    def __iter__(self) -> Iterator[dict]:
        yield from super().__iter__()
        is_last = int(os.environ.get("RANK", 0)) == int(os.environ.get("WORLD_SIZE", 1)) - 1
        self.start = len(BATCHES) if is_last else 0


class GrainIterator:
    """The methods of Grain's iterators."""

    def __init__(self, lost: int) -> None:
        self.next, self.lost = 0, lost

    def __iter__(self) -> GrainIterator:
        return self

    def __next__(self) -> dict:
        if self.next >= len(BATCHES):
            raise StopIteration
        self.next += 1
        return {"id": BATCHES[self.next - 1]}

    def get_state(self) -> dict:
        return {"next_index": self.next}

    def set_state(self, state: dict) -> None:
        self.next = state["next_index"] + self.lost


class Grain:
    def __init__(self, lost: int = 0) -> None:
        self.lost = lost

    def __iter__(self) -> GrainIterator:
        return GrainIterator(self.lost)


class Module:
    """The methods of Lightning's data modules; the state is loaded before the loader is made."""

    def __init__(self, lost: int = 0) -> None:
        self.batches, self.lost = Batches(), lost

    def train_dataloader(self) -> Batches:
        return self.batches

    def state_dict(self) -> dict:
        return {"given": self.batches.given}

    def load_state_dict(self, state: dict) -> None:
        self.batches.start = state["given"] + self.lost


class Stateless(Module):
    """As a data module without a state of its own: Lightning's own is empty."""

    def state_dict(self) -> dict:
        return {}


def grain(lost: int = 0) -> object:
    """Grain itself; `lost`: its position is not restored."""
    import grain.python

    dataset = grain.python.MapDataset.range(36).shuffle(seed=1).batch(4).to_iter_dataset()
    return Forgetful(dataset) if lost else dataset


class Forgetful:
    def __init__(self, dataset: object) -> None:
        self.dataset = dataset

    def __iter__(self) -> object:
        iterator = iter(self.dataset)
        iterator.set_state = lambda state: None
        return iterator
