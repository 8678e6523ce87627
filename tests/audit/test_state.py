"""Every way of keeping a loader's position is found, and a position that is wrong is a fail."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import util
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from millrace.audit.checks.findings import LONGER
from millrace.audit.probes.restart import Restarts, resume
from millrace.audit.runner.listener import SEED
from millrace.audit.runner.target import Options
from tests.audit import plain, states
from tests.audit.ranks import BesideALateOne, Clock
from tests.audit.running import run

needs_grain = pytest.mark.skipif(util.find_spec("grain") is None, reason="grain is not installed")


@pytest.mark.parametrize(
    "loader, how",
    [
        ("Energon", "restore_state_rank"),
        ("Grain", "iterator"),
        ("Module", "module"),
        pytest.param("grain", "iterator", marks=needs_grain),
    ],
)
@pytest.mark.parametrize("lost, verdict", [(0, "pass"), (1, "fail")])
def test_a_restart_is_judged_by_the_way_that_the_library_has(guard, loader, how, lost, verdict):
    argv = ["--loader", f"{Path(states.__file__)}:{loader}", "--arg", f"lost={lost}"]
    _, findings = run(guard, [*argv, "--only", "resume", "--ranks", "1"])
    assert findings[0].verdict == verdict, findings
    assert f"by {how}" in findings[0].cause


@pytest.mark.parametrize("loader", [f"{Path(states.__file__)}:Stateless", f"{plain.here}:Module"])
def test_a_module_whose_state_is_empty_or_not_there_has_none(guard, loader):
    _, [finding] = run(guard, ["--loader", loader, "--only", "resume", "--ranks", "1"])
    assert finding.verdict == "not applicable"


AS_LONG = "an epoch 1 as long as epoch 0"


@pytest.mark.parametrize("ranks, needs", [(1, [AS_LONG]), (2, [LONGER, AS_LONG])])
def test_an_epoch_that_ends_before_its_state_is_saved_decides_nothing(guard, ranks, needs):
    loader = f"{Path(states.__file__)}:Exhausted"
    _, findings = run(guard, ["--loader", loader, "--only", "resume", "--ranks", str(ranks)])
    assert [(finding.verdict, finding.needs) for finding in findings] == [
        ("not decidable", need) for need in needs
    ]


def target_of(made: Callable) -> SimpleNamespace:
    return SimpleNamespace(made=made, loader_of=lambda made: made, options=Options("a:b"))


@pytest.mark.parametrize("passes, ways", [(1, 0), (2, 1), (3, 1)])
def test_a_state_is_restored_only_if_the_time_sufficed_to_save_it(rank, passes, ways):
    begun = []

    class Slow(states.Energon):
        def __iter__(self):
            begun.append(self)
            if len(begun) > passes:
                rank.seconds.clear()
            yield from super().__iter__()

    seen = resume(target_of(Slow), rank)
    assert (len(seen["ways"]), seen["next"]) == (ways, None)
    assert len(begun) == passes + 1
    assert [len(epoch) for epoch in seen["run"]] == [9, 9 if passes > 1 else 1]


class Told(states.Energon):
    """Its state is the one that it goes on with; it notes what it is told."""

    def __init__(self, scripts: list[list]) -> None:
        super().__init__()
        self.state = {"given": 0}
        self.notes: list = []
        scripts.append(self.notes)

    def set_epoch(self, epoch: int) -> None:
        self.notes.append(epoch)

    def __iter__(self) -> Iterator[dict]:
        for batch in super().__iter__():
            self.state["given"] = self.given
            yield batch

    def save_state_rank(self) -> dict:
        return self.state

    def restore_state_rank(self, state: dict) -> None:
        super().restore_state_rank(state)
        self.notes.append("restored")
        self.state = state


def test_a_state_is_restored_as_it_was_saved_with_the_epoch_told_and_untold(rank):
    scripts: list[list] = []
    seen = resume(target_of(lambda: Told(scripts)), rank)
    assert scripts == [[0, 1], ["restored"], ["restored", 1], [0], ["restored", 1]]
    assert [len(way["passes"][0]) for way in seen["ways"]] == [6, 6]


@pytest.mark.parametrize("has_ended", [True, False])
def test_the_state_of_an_ended_epoch_is_restored_only_if_it_has_ended_in_all_ranks(
    tmp_path, has_ended
):
    agreed = iter([True, True, has_ended])  # it has a state, the time suffices, its epoch has ended

    class Beside(Clock):
        def all_agree(self, yes: bool) -> bool:
            return yes and next(agreed)

    seen = resume(target_of(states.Energon), Beside(0, 2, tmp_path, 0.0, [1000.0]))
    assert len(seen["ways"]) == 1 and (seen["next"] is not None) == has_ended
    # One that is told no epoch may give the rest of the ended one first.
    assert not has_ended or len(seen["next"]["passes"]) == 2


def test_the_state_of_a_short_epoch_is_saved_after_its_first_batch(rank, monkeypatch):
    monkeypatch.setattr(states, "BATCHES", states.BATCHES[:2])
    seen = resume(target_of(states.Energon), rank)
    assert (seen["at"], len(seen["ways"])) == (1, 1)


class Kept(plain.Squares):
    """A map-style dataset whose state is what it holds."""

    def state_dict(self) -> dict:
        return {}

    def load_state_dict(self, state: dict) -> None: ...


class Streamed(IterableDataset, Kept):
    def __iter__(self) -> Iterator[int]:
        return iter(range(12))


@pytest.mark.parametrize(
    "dataset, workers, how",
    [(Kept(), 0, ""), (Streamed(), 0, "dataset"), (Streamed(), 2, "")],
)
def test_the_state_of_a_dataset_is_a_position_only_of_a_stream_without_workers(
    rank, dataset, workers, how
):
    loader = DataLoader(dataset, batch_size=4, num_workers=workers)
    seen = resume(target_of(lambda: loader), rank)
    assert seen["how"] == how


def test_each_rank_is_seeded_by_its_number(tmp_path):
    seeds = []
    for number in range(2):
        clock = Clock(number, 2, tmp_path, 0.0, [1000.0])
        seeds.append(Restarts(target_of(torch.initial_seed), clock).made())
    assert seeds == [SEED, SEED + 1]


def test_no_state_is_restored_if_another_rank_has_none(tmp_path):
    late = BesideALateOne(0, 2, tmp_path, 0.0, [1000.0])
    seen = resume(target_of(states.Energon), late)
    assert (seen["ways"], seen["next"]) == ([], None)
