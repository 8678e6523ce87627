"""Addressed randomness: stable over machines and order, apart from the ambient generators."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from millrace.common.training import seeding


def test_an_address_gives_the_same_seed_for_ever():
    # A change of these would reshuffle every run that is resumed.
    assert seeding.derive(42) == 6090968991249832154
    assert seeding.derive(42, "epoch", 3) == 7503159487316563049
    assert seeding.derive(2**70, -1, "ä") == 6877715260471690468


def test_addresses_that_look_alike_differ():
    addresses = [(1, 2, 3), (1, 23), (12, 3), (1, "2", 3), (1, "23")]
    addresses += [(1, "2", "3"), (1, 3, 2), (1, "2,3")]
    seeds = [seeding.derive(*address) for address in addresses]
    assert len(set(seeds)) == len(addresses)
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert seeding.derive(1, np.uint64(2**63)) == seeding.derive(1, 2**63)
    assert seeding.derive(1, np.int32(5)) == seeding.derive(np.int64(1), 5)
    for wrong in (1.0, None, b"a", np.float64(2)):
        with pytest.raises(TypeError):
            seeding.derive(1, wrong)


def test_draws_depend_on_the_address_alone():
    first = seeding.generator(1, 0, 77).random(4)
    seeding.generator(1, 0, 78).random(1000)
    assert (seeding.generator(1, 0, 77).random(4) == first).all()
    draws = np.array(
        [
            seeding.generator(1, epoch, number).random()
            for epoch in range(20)
            for number in range(50)
        ]
    )
    assert len(np.unique(draws)) == 1000
    assert abs(draws.mean() - 0.5) < 0.03 and abs(draws.std() - 12**-0.5) < 0.02


def ambient() -> tuple[float, float, float]:
    return random.random(), float(np.random.rand()), float(torch.rand(()))


def test_ambient_generators_are_seeded_kept_and_restored():
    seeding.seed_all(5, "x")
    first = ambient()
    second = ambient()
    assert len({*first, *second}) == 6
    seeding.seed_all(5, "x")
    assert ambient() == first
    with seeding.preserved():
        ambient()
    with seeding.addressed(5, "loader", 1):
        inside = ambient()
    assert ambient() == second
    with seeding.addressed(5, "loader", 1):
        assert ambient() == inside
    with seeding.addressed(5, "loader", 2):
        assert not set(ambient()) & set(inside)
    with pytest.raises(ZeroDivisionError), seeding.preserved():
        seeding.seed_all(5, "x")
        raise ZeroDivisionError
    assert ambient() not in (first, second, inside)


def test_a_state_survives_a_file_that_is_loaded_safely(tmp_path):
    seeding.seed_all(1)
    random.gauss(0, 1)  # leaves half a pair in Python's state, and in numpy's
    np.random.normal()
    torch.save(seeding.rng_state(), tmp_path / "rng.pt")
    expected = (*ambient(), random.gauss(0, 1), np.random.normal())
    seeding.seed_all(2)
    seeding.set_rng_state(torch.load(tmp_path / "rng.pt", weights_only=True))
    assert (*ambient(), random.gauss(0, 1), np.random.normal()) == expected


class Signalled(Dataset):
    """Sends its own process a stop signal, as Slurm does to all of a job, and goes on."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> list:
        for number in (signal.SIGTERM, signal.SIGUSR1):
            os.kill(os.getpid(), number)
        return [
            index,
            os.getpid(),
            torch.get_num_threads(),
            random.random(),
            float(np.random.rand()),
        ]


class Hanging(Dataset):
    """Never gives a sample, and says so in a file."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> None:
        self.file.touch()
        time.sleep(600)


def test_a_worker_that_hangs_leaves_when_its_trainer_says_so(tmp_path):
    loader = DataLoader(
        Hanging(tmp_path / "hangs"), num_workers=1, worker_init_fn=seeding.start_worker
    )
    batches = iter(loader)
    until = time.monotonic() + 60
    while not (tmp_path / "hangs").exists() and time.monotonic() < until:
        time.sleep(0.05)
    (worker,) = batches._workers
    worker.terminate()
    worker.join(60)
    code = worker.exitcode
    worker.kill()
    assert code == 0


@pytest.mark.parametrize("start_method", ["fork", "spawn"])
def test_workers_are_deaf_to_stop_signals_and_draw_differently(start_method):
    loader = DataLoader(
        Signalled(),
        batch_size=None,
        num_workers=2,
        worker_init_fn=seeding.start_worker,
        multiprocessing_context=start_method,
        generator=torch.Generator().manual_seed(1),
    )
    rows = list(loader)
    assert [row[0] for row in rows] == [0, 1, 2, 3]
    assert len({row[1] for row in rows}) == 2 and os.getpid() not in {row[1] for row in rows}
    assert {row[2] for row in rows} == {1}
    assert len({row[3] for row in rows}) == 4 and len({row[4] for row in rows}) == 4
