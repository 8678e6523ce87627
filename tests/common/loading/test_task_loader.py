"""A task's batches as an audit takes them: which epoch, from which step, on which rank."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from millrace.common.loading.task_loader import HeldOut, TaskLoader

STEPS = 3
RANK, WORLD_SIZE = 1, 2


class Task:
    """Its batches are (epoch, step, rank, world size)."""

    def __init__(self) -> None:
        self.inner = SimpleNamespace(plan=None, data_loader="workers")

    def batch_loader(self, rank: int) -> SimpleNamespace:
        assert rank == RANK
        return self.inner

    def plan(self, epoch: int, world_size: int) -> tuple[int, int]:
        return (epoch, world_size)

    def steps_per_epoch(self, epoch: int, world_size: int) -> int:
        return STEPS + epoch * world_size

    def loader(self, epoch: int, step: int, rank: int, world_size: int) -> Iterator[Any]:
        return ((epoch, number, rank, world_size) for number in range(step, STEPS))

    def batch_ids(self, batch: tuple[int, ...]) -> torch.Tensor:
        return torch.tensor(batch)


@pytest.fixture(autouse=True)
def second_of_two_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "LOCAL_RANK"):
        monkeypatch.setenv(name, str(RANK))
    for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.setenv(name, str(WORLD_SIZE))


def loader_of(epochs: int = 0) -> TaskLoader:
    task: Any = Task()
    return TaskLoader(task, epochs=epochs)


def passed(loader: TaskLoader) -> tuple[int, int, int]:
    """Epoch, first step and number of batches of a whole pass, all of which are of this rank."""
    batches = list(loader)
    assert {batch[2:] for batch in batches} == {(RANK, WORLD_SIZE)}
    assert len({batch[0] for batch in batches}) == 1
    return (*batches[0][:2], len(batches))


def test_each_pass_is_the_next_epoch_of_this_rank():
    loader = loader_of()
    assert loader.task.inner.plan == (0, WORLD_SIZE)
    assert loader.sample_ids((4, 5)) == [4, 5]
    assert [passed(loader) for _ in range(2)] == [(0, 0, STEPS), (1, 0, STEPS)]
    assert len(loader) == STEPS + WORLD_SIZE


def test_after_the_last_epoch_that_there_is_the_first_one_comes():
    loader = loader_of(epochs=2)
    assert [passed(loader)[0] for _ in range(3)] == [0, 1, 0]
    loader.set_epoch(5)
    assert passed(loader) == (1, 0, STEPS)
    assert loader.state_dict() == {"epoch": 0, "step": 0}


def test_a_state_is_of_the_step_after_the_last_batch_and_of_the_next_epoch_after_the_end():
    loader = loader_of()
    states = [loader.state_dict()]
    for _ in loader:
        states.append(loader.state_dict())
    assert states == [{"epoch": 0, "step": step} for step in range(STEPS + 1)]
    assert loader.state_dict() == {"epoch": 1, "step": 0}
    resumed = loader_of()
    resumed.load_state_dict(states[2])
    assert resumed.state_dict() == states[2]
    assert [passed(resumed) for _ in range(2)] == [(0, 2, 1), (1, 0, STEPS)]


@pytest.mark.parametrize("epoch, expected", [(2, (2, 1, 2)), (3, (3, 0, STEPS))])
def test_the_step_of_a_state_stays_if_its_own_epoch_is_set(epoch, expected):
    loader = loader_of()
    loader.load_state_dict({"epoch": 2, "step": 1})
    loader.set_epoch(epoch)
    assert passed(loader) == expected


def test_a_pass_is_run_by_the_loader_that_listens():
    loader = loader_of()
    loader.data_loader = "listener"
    passed(loader)
    assert loader.task.inner.data_loader == "listener"


def test_a_split_that_is_held_out_has_names_and_no_batches():
    held_out = HeldOut(lambda: ["a", "b"])
    assert list(held_out) == [] and list(held_out.recordings()) == ["a", "b"]
