"""A loader of any data set: which step a pass begins with, and which states it takes."""

from __future__ import annotations

import json
import multiprocessing
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest

from millrace.common.loading.loader import BatchLoader
from millrace.common.loading.plan import BatchRequest
from tests.refusals import refused


class Steps(NamedTuple):
    """Three steps of two rows each."""

    epoch: int
    world_size: int = 1
    rows: np.ndarray = np.arange(6)
    offsets: np.ndarray = np.array([0, 2, 4, 6])

    def __len__(self) -> int:
        return 3

    def batch(self, step: int, rank: int) -> np.ndarray:
        return self.rows[self.offsets[step] : self.offsets[step + 1]]

    def is_filler(self, step: int, rank: int) -> bool:
        return False


class Data:
    """Batches that name their epoch and step; `checked` are the steps that were checked."""

    rows, rank, plan, transform = 6, 0, None, None

    def __init__(self) -> None:
        self.checked: list[int] = []

    def __len__(self) -> int:
        return 3

    def load(self, request: BatchRequest, slots: object) -> SimpleNamespace:
        names = {"step": request.step, "epoch": request.epoch}
        return SimpleNamespace(**names, planned=2, bad=[], filler=request.filler)

    def check(self, batch: Any) -> None:
        self.checked.append(batch.step)

    def new_slots(self, workers: int, per_worker: int) -> None:
        return None

    def place(self, row: int, message: str) -> str:
        return f"row {row}"


def loader_of(start_step: int = 0, **plan: Any) -> BatchLoader:
    data: Any = Data()
    plans: Any = lambda epoch: Steps(epoch, **plan)  # noqa: E731
    return BatchLoader(data, 0, start_step, plans=plans)


def steps(loader: BatchLoader) -> list[tuple[int, int]]:
    return [(batch.epoch, batch.step) for batch in loader]


def test_another_epoch_begins_at_its_first_step_whatever_was_begun_or_resumed():
    loader = loader_of(start_step=2)
    assert len(loader) == 1
    assert steps(loader) == [(0, 2)]
    loader.start_step = 4
    assert (len(loader), steps(loader)) == (0, [])
    loader.set_epoch(1)
    assert steps(loader) == [(1, 0), (1, 1), (1, 2)]
    state = loader.state_dict()
    resumed = loader_of()
    resumed.load_state_dict(state)
    assert steps(resumed) == []  # of an epoch that was done
    resumed.load_state_dict(state | {"step": 2})
    assert steps(resumed) == [(1, 2)]
    assert steps(resumed) == [(1, 0), (1, 1), (1, 2)]  # the next pass is no resumed one
    resumed.load_state_dict(state | {"step": 2})
    resumed.set_epoch(np.int64(2))  # type: ignore[arg-type]
    assert steps(resumed) == [(2, 0), (2, 1), (2, 2)]
    assert json.loads(json.dumps(resumed.state_dict()))["epoch"] == 2
    with refused(r"epoch is 2.5\. Give a whole number"):
        resumed.set_epoch(2.5)  # type: ignore[arg-type]


def test_a_pass_that_goes_on_does_not_move_the_position_in_an_epoch_set_meanwhile():
    loader = loader_of()
    batches = iter(loader)
    next(batches)
    loader.set_epoch(1)
    assert next(batches).epoch == 0
    state = loader.state_dict()
    assert (state["epoch"], state["step"]) == (1, 0)


@pytest.mark.parametrize(
    "plan, step",
    [
        ({"world_size": 2}, 0),
        ({"rows": np.array([0, 1, 2, 3, 5, 4])}, 0),
        ({"offsets": np.array([0, 1, 4, 6])}, 0),
        ({}, 1.5),
        ({}, 4),
        ({}, -1),
    ],
)
def test_a_state_of_other_ranks_rows_or_batches_or_of_no_step_is_refused(plan, step):
    state = loader_of(**plan).state_dict() | {"step": step}
    with refused("belongs to another plan"):
        loader_of().load_state_dict(state)


@pytest.mark.parametrize(
    "disturb",
    [
        lambda loader, monkeypatch: next(iter(loader)),
        lambda loader, monkeypatch: loader.close(),
        lambda loader, monkeypatch: monkeypatch.setattr("os.getpid", lambda: 1),
    ],
)
def test_a_pass_is_refused_after_another_one_has_begun_or_a_close_or_a_fork(monkeypatch, disturb):
    loader = loader_of()
    first = iter(loader)
    next(first)
    disturb(loader, monkeypatch)
    with refused("step 0: the pass cannot go on"):
        next(first)
    assert steps(loader) == [(0, 0), (0, 1), (0, 2)]


def test_a_pass_in_a_process_that_was_forked_from_that_of_the_workers_is_refused(monkeypatch):
    data: Any = Data()
    loader = BatchLoader(data, 1, plans=Steps)
    list(loader)
    with monkeypatch.context() as forked:
        forked.setattr("os.getpid", lambda: 1)
        words = r"its workers belong to the process .*\. Open a loader in each process"
        with refused(words):
            list(loader)
    assert len(list(loader)) == 3
    loader.close()
    loader._starter = 1
    assert len(list(loader)) == 3
    loader.close()


@pytest.mark.parametrize("workers", [0, 1])
def test_a_hook_that_runs_out_ends_no_pass_as_if_it_were_whole(workers):
    data: Any = Data()
    data.transform = lambda batch: next(iter(()))
    loader = BatchLoader(data, workers, plans=Steps)
    with pytest.raises(RuntimeError, match="`decode` or `transform` raised StopIteration"):
        list(loader)
    loader.close()


def test_the_first_batch_of_a_process_is_checked_and_no_other():
    loader = loader_of()
    steps(loader)
    steps(loader)
    assert loader.dataset.checked == [0]


def test_a_request_names_the_rows_of_the_next_batch_of_its_worker():
    data: Any = Data()
    data.plan = Steps(0)
    first, *others = BatchLoader(data, 2)._feed
    assert list(first.following) == [4, 5]
    assert [request.following for request in others] == [None, None]
    alone = next(iter(BatchLoader(data, 0)._feed))
    assert list(alone.following) == [2, 3]


def test_the_workers_are_started_and_kept_busy_as_it_was_asked():
    data: Any = Data()
    asked = BatchLoader(data, 2, start_method="spawn", prefetch_batches=3).data_loader
    context: Any = asked.multiprocessing_context
    assert (asked.prefetch_factor, context.get_start_method()) == (3, "spawn")


def test_closing_ends_the_workers_in_the_middle_of_a_pass_too():
    data: Any = Data()
    data.plan = Steps(0)
    before = set(multiprocessing.active_children())
    loader = BatchLoader(data, 1)
    batches = iter(loader)
    assert next(batches).step == 0 and set(multiprocessing.active_children()) > before
    loader.close()
    assert set(multiprocessing.active_children()) == before
