"""DP1: random numbers that workers, epochs or ranks repeat."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

import numpy as np
import torch
from torch.utils.data import DataLoader, Subset, default_collate, get_worker_info

from tests.audit.mutants import RANKS, bug, passing, twin, undecided
from tests.audit.mutants.rows import Noisy, Rows, Stream, draw, load, rank, row, spread, train


def numpy_constant(worker: int) -> None:
    np.random.seed(42 + worker)


def by_clock(worker: int) -> None:
    np.random.seed(worker + int(time.time()))


def torch_constant(worker: int) -> None:
    torch.manual_seed(42)


def seed_worker(worker: int) -> None:
    np.random.seed(torch.initial_seed() % 2**32)
    random.seed(torch.initial_seed() % 2**32)


def fresh_generator(worker: int) -> None:
    get_worker_info().dataset.rng = np.random.default_rng(torch.initial_seed())


def seeded(seed: int) -> DataLoader:
    """Batches of a rank whose script begins with torch.manual_seed."""
    torch.manual_seed(seed)
    return spread(Noisy("torch", 32))


def addressed(index: int) -> dict:
    """The noise of a row is a function of its index: the same whoever reads it."""
    return {"x": row(index)["x"] + draw(np.random.default_rng((5, index))), "id": index}


class Unused(Rows):
    """Its generator serves __init__ only, for an order."""

    def __init__(self) -> None:
        super().__init__()
        self.rng = np.random.default_rng(0)
        self.order = self.rng.permutation(24).tolist()

    def __getitem__(self, index: int) -> dict:
        return row(self.order[index])


class InBatches(Stream):
    """Makes batches of rows that all workers put into one order, as a shuffle of torch's pipes."""

    def __init__(self) -> None:
        super().__init__()
        self.rng = random.Random(1)

    def __iter__(self) -> Iterator[dict]:
        order = list(range(self.rows))
        self.rng.shuffle(order)
        mine = order[self.share()]
        for at in range(0, len(mine), 4):
            yield default_collate(list(map(row, mine[at : at + 4])))


class Lazily(Rows):
    """The first sample seeds its generator, or puts another one in its place."""

    def __init__(self, rng: object = None) -> None:
        super().__init__()
        self.rng, self.is_fresh = rng, True

    def __getitem__(self, index: int) -> dict:
        if self.is_fresh:
            self.is_fresh = False
            if isinstance(self.rng, random.Random):
                self.rng.seed(torch.initial_seed())
            elif isinstance(self.rng, torch.Generator):
                self.rng.manual_seed(torch.initial_seed())
            else:
                self.rng = np.random.default_rng(torch.initial_seed())
        return {"x": row(index)["x"] + draw(self.rng), "id": index}


class SeededByWorker(Rows):
    """Each worker seeds NumPy by its number as it reads its first sample; or seeds it for each
    sample, and puts it back."""

    def __init__(self, is_put_back: bool = False) -> None:
        super().__init__()
        self.is_put_back, self.is_fresh = is_put_back, True

    def __getitem__(self, index: int) -> dict:
        before = np.random.get_state()
        worker = get_worker_info()
        if worker and self.is_fresh:
            self.is_fresh = self.is_put_back
            np.random.seed(worker.id)
        shift = np.random.random()
        if self.is_put_back:
            np.random.set_state(before)
            shift += np.random.random()
        return {"x": row(index)["x"] + shift, "id": index}


def moved(index: int, rng: object = np.random.default_rng(0)) -> dict:
    return {"x": row(index)["x"] + draw(rng), "id": index}


class Mixup:
    def __init__(self) -> None:
        self.rng = random.Random(0)

    def __call__(self, samples: list) -> dict:
        batch = default_collate(samples)
        share = self.rng.random()
        return {**batch, "x": share * batch["x"] + (1 - share) * batch["x"].flip(0)}


MIXED = "the generator collate_fn.rng"
CASES = {
    "DP1": [
        bug("numpy generator in init", lambda: train(Noisy(np.random.default_rng(0)))),
        bug(
            "python random in init",
            lambda: train(Noisy(random.Random(7))),
            says="workers 0 and 1 | epochs 0 and 1",
        ),
        bug("torch generator in init", lambda: load(Noisy(torch.Generator().manual_seed(3)))),
        bug(
            "constant numpy seed",
            lambda: train(Noisy("numpy"), worker_init_fn=numpy_constant),
            says="epochs 0 and 1",
        ),
        bug("constant torch seed", lambda: train(Noisy("torch"), worker_init_fn=torch_constant)),
        bug("seeded by the first sample", lambda: train(SeededByWorker()), says="epochs 0"),
        bug("generator as a default", lambda: train(Rows(make=moved)), says="make.rng"),
        bug("generator of collate", lambda: train(Rows(), collate_fn=Mixup()), says=MIXED),
        bug("one seed on all ranks", lambda: seeded(0), RANKS, says="ranks 0 and 1"),
        bug(
            "persistent workers seeded once",
            lambda: spread(
                Noisy("numpy", 32), worker_init_fn=numpy_constant, persistent_workers=True
            ),
            RANKS,
        ),
        passing("torch rand", lambda: train(Noisy("torch")), says="differ"),
        twin("numpy global state", lambda: train(Noisy("numpy"))),
        twin("numpy by the clock", lambda: train(Noisy("numpy"), worker_init_fn=by_clock)),
        twin("numpy by worker seed", lambda: train(Noisy("numpy"), worker_init_fn=seed_worker)),
        twin(
            "generator made a worker",
            lambda: train(Noisy(np.random.default_rng(0)), worker_init_fn=fresh_generator),
        ),
        twin("generator made by the first sample", lambda: train(Lazily())),
        twin("generator of another's place", lambda: train(Lazily(np.random.default_rng(0)))),
        twin("python generator seeded by a sample", lambda: train(Lazily(random.Random(0)))),
        twin("torch generator seeded by a sample", lambda: train(Lazily(torch.Generator()))),
        twin("a seed that is put back", lambda: train(SeededByWorker(is_put_back=True))),
        passing("no augmentation", lambda: train(Rows()), says="the same"),
        passing("no rows", lambda: load(Subset(Rows(), [])), RANKS),
        twin("a seed a rank", lambda: seeded(rank()), RANKS),
        twin("noise addressed by index", lambda: train(Rows(make=addressed))),
        undecided(
            "batches of one order",
            lambda: load(InBatches(), batch_size=None, persistent_workers=True),
            says="from the generator rng",
        ),
        twin("generator used in init only", lambda: train(Unused())),
    ],
}
