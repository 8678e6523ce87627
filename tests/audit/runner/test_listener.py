"""What is noted of a loader's batches, and that they and the loader stay as they are."""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import datetime
from itertools import count, islice
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from millrace.audit.runner.digest import digest, fields, rows
from millrace.audit.runner.listener import (
    Functions,
    Listener,
    batch_size,
    index_list,
    noting,
    reseed,
)
from millrace.audit.runner.trace import described
from millrace.common.errors import MillraceError
from tests.audit import plain
from tests.audit.mutants.randomness import Lazily
from tests.audit.mutants.rows import Rows, load
from tests.audit.ranks import Clock


class Held(plain.Squares):
    """Draws from generators of its own, where nobody sees them."""

    def __init__(self) -> None:
        super().__init__()
        self.transform = [np.random.default_rng(3)]

    def __getitem__(self, index: int) -> float:
        return self.transform[0].random()


@dataclass(slots=True)
class Slotted:
    x: int


class OneSlot:
    __slots__ = "x"

    def __init__(self, x: int) -> None:
        self.x = x


class Pair(NamedTuple):
    x: torch.Tensor
    y: torch.Tensor


class Column:
    """As pandas has it."""

    def __init__(self, x: int) -> None:
        self.to_numpy = lambda: np.array([x])


def nested(value: float) -> torch.Tensor:
    return torch.nested.nested_tensor([torch.zeros(2), torch.full((3,), float(value))])


class Stream(IterableDataset):
    def __iter__(self):
        yield from range(6)


def notes_of(loader: object, rank: Clock) -> list[dict]:
    """How the batches of one epoch came about."""
    tap = Listener(loader, rank)
    tap.run()
    return tap.notes(0)


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_have_their_indices_workers_and_samples(rank, workers):
    loader = plain.good(shuffle=True, num_workers=workers)
    tap = Listener(loader, rank)
    for epoch in range(2):
        batches = list(tap.epoch())
        notes = tap.notes(epoch)
        assert [note["indices"] for note in notes] == [batch["index"].tolist() for batch in batches]
        assert [note["batch"] for note in notes] == [digest(batch) for batch in batches]
        assert [note["worker"] for note in notes] == ([None] * 3 if not workers else [0, 1, 0])
        samples = [fields(loader.dataset[index]) for note in notes for index in note["indices"]]
        assert [each for note in notes for each in note["samples"]] == samples
    assert tap.ended == [True, True]
    # What a wrapper asks of the sampler, or sets, is the user's.
    tap.core.batch_sampler.batch_size = 5
    assert isinstance(tap.core.batch_sampler, BatchSampler)
    assert tap.core.batch_sampler.sampler is loader.sampler and loader.batch_sampler.batch_size == 5
    assert loader._iterator is None and loader.collate_fn.__module__.startswith("torch.")


class Wrapper:
    """Gives other batches than its loader: without the last ones, or of two each."""

    def __init__(self, kept: int, joined: int) -> None:
        self.loader = plain.good(length=40)
        self.kept, self.joined = kept, joined

    def __iter__(self):
        batches = list(self.loader)
        batches = batches[: len(batches) - self.kept]
        for at in range(0, len(batches), self.joined):
            yield {"own": torch.cat([part["index"] for part in batches[at : at + self.joined]])}


@pytest.mark.parametrize("kept, joined, is_known", [(1, 1, True), (2, 1, False), (0, 2, False)])
def test_a_wrapper_that_keeps_a_batch_gives_its_loaders_in_turn(rank, kept, joined, is_known):
    tap = Listener(Wrapper(kept, joined), rank)
    batches = list(tap.epoch())
    indices = [note["indices"] for note in tap.notes(0)]
    assert indices == [batch["own"].tolist() if is_known else None for batch in batches]


class Steps:
    """Epochs of so many steps; 0: all."""

    def __init__(self, loader: DataLoader, steps: int) -> None:
        self.loader, self.steps = loader, steps

    def __iter__(self):
        return islice(self.loader, self.steps or None)


@pytest.mark.parametrize(
    "data, steps, is_left",
    [
        (plain.Squares(6), 2, True),
        (plain.Squares(6), 3, False),  # nobody asked it for its end
        (Stream(), 2, True),
        (Stream(), 0, False),
    ],
)
def test_a_wrapper_that_counts_steps_leaves_its_loader_before_its_end(rank, data, steps, is_left):
    tap = Listener(Steps(DataLoader(data, batch_size=2), steps), rank)
    tap.run()
    assert tap.ended == [True] and tap.is_left() == is_left
    tap.view.steps = 1
    tap.run()
    assert tap.is_left()


class Received(Steps):
    """Batches that another rank has read, as Accelerate hands them out."""

    def __iter__(self):
        return iter([torch.zeros(2)])


@pytest.mark.parametrize(
    "loader", [[torch.zeros(2)], Received(DataLoader(plain.Squares(6), batch_size=2), 0)]
)
def test_what_reads_no_loader_leaves_none(rank, loader):
    tap = Listener(loader, rank)
    tap.run()
    assert not tap.is_left()


def test_random_states_are_noted_where_they_are_drawn_from(rank):
    loader = DataLoader(Held(), batch_size=4, num_workers=2)
    first, second, third = notes_of(loader, rank)
    assert first["start"] == second["start"] | {
        name: first["start"][name] for name in ("torch", "python", "numpy")
    }
    assert (
        first["random"]["transform.0"]
        == second["random"]["transform.0"]
        != first["start"]["transform.0"]
    )
    assert third["random"]["transform.0"] != first["random"]["transform.0"]
    assert first["random"]["torch"] == first["start"]["torch"] != second["start"]["torch"]


def test_a_loader_without_indices_is_known_by_content(rank):
    notes = notes_of(DataLoader(Stream(), batch_size=2, num_workers=2), rank)
    assert [note["worker"] for note in notes] == [0, 1] * 3
    assert {note["indices"] for note in notes} == {None}
    # Batches that are equal came in turn.
    notes = notes_of(DataLoader([0] * 8, batch_size=2, num_workers=2), rank)
    assert [note["worker"] for note in notes] == [0, 1] * 2


@pytest.mark.parametrize("rng", [random.Random(0), torch.Generator(), np.random.default_rng(0)])
def test_a_generator_that_a_sample_seeds_has_not_begun_as_its_copy(rng, rank):
    data = Lazily(rng)
    data.beside = random.Random(1)
    for note in notes_of(load(data), rank):
        assert note["random"].keys() - note["start"].keys() == {"rng"}


@pytest.mark.parametrize(
    "name, seed",
    [
        ("torch", lambda: torch.manual_seed(7)),
        ("python", lambda: random.seed(7)),
        ("numpy", lambda: np.random.seed(7)),
    ],
)
def test_a_state_that_samples_seed_alike_has_begun_alike_in_each_worker(name, seed, rank):
    loader = load(Rows(make=lambda index: (seed(), index)[1]))
    first, second, *_ = notes_of(loader, rank)
    assert first["worker"] != second["worker"] and first["start"][name] == second["start"][name]


def test_arguments_are_noted_before_a_call_by_name_too():
    noted = []
    called = noting(lambda epoch: (epoch, list(noted)), noted.append)
    assert [called(0), called(epoch=1)] == [(0, [0]), (1, [0, 1])]


def test_a_note_stays_as_it_is_while_the_next_batch_is_made():
    functions = Functions(DataLoader([0]))
    functions.seeded = {"torch": "by the first sample"}
    # A worker pickles the first one only now.
    first, second = (functions.collate_fn([torch.rand(1)]).note for _ in range(2))
    assert first["start"].keys() == {"torch"} and first["start"] != second["start"]


@pytest.mark.parametrize(
    "own, given",
    [
        ({"timeout": 9, "persistent_workers": True}, 0),
        ({"num_workers": 0}, 1),
        ({"num_workers": 1, "persistent_workers": True}, 1),
    ],
)
def test_a_loader_is_read_with_other_workers_than_its_own(rank, own, given):
    loader = plain.good(**own)
    list(loader)  # its workers may go on
    tap = Listener(loader, rank, given, max_batches=2)
    tap.run()
    tap.close()
    assert [note["worker"] for note in tap.notes(0)] == [0 if given else None] * 2
    assert "torch" in tap.notes(0)[0]["start"]


def test_a_batch_has_as_many_samples_as_it_was_made_of(rank):
    loader = DataLoader(plain.Squares(6), 4, collate_fn=lambda _: torch.zeros(1, 9))
    assert [note["size"] for note in notes_of(loader, rank)] == [4, 2]


def test_seeds_draw_the_same_again():
    drawn = []
    for _ in range(2):
        reseed()
        drawn.append((torch.rand(1).item(), random.random(), np.random.random()))
    assert drawn[0] == drawn[1]


def test_loaders_in_a_list_are_listened_to(rank):
    class Several:
        def __init__(self) -> None:
            self.loaders = [None, plain.good(num_workers=0)]

        def __iter__(self):
            return iter(self.loaders[1])

    notes = notes_of(Several(), rank)
    assert [note["indices"] for note in notes] == [[*range(at, at + 4)] for at in (0, 4, 8)]
    assert all("random" in note for note in notes)


@pytest.mark.parametrize("seconds", [100, 0])
def test_persistent_workers_read_the_next_epoch_too_if_there_is_time(tmp_path, seconds):
    rank = Clock(0, 1, tmp_path, 0.0, [seconds])
    loader = plain.good(length=400, num_workers=2, persistent_workers=True)
    tap = Listener(loader, rank, max_batches=2)
    tap.run()
    tap.run()
    first, second = ({note["pid"] for note in tap.notes(epoch)} for epoch in (0, 1))
    tap.close()
    assert tap.ended == [False, False]
    assert (not first & second) == tap.lost_workers == (not seconds)


@pytest.mark.parametrize("slowest, is_lost", [(2499.7, False), (2499.9, True)])
def test_persistent_workers_need_time_for_what_they_were_asked_for(tmp_path, slowest, is_lost):
    """Two batches are under way, and two are to be read: four times the slowest, and a second."""
    loader = plain.good(num_workers=1, persistent_workers=True, prefetch_factor=2)
    tap = Listener(loader, Clock(0, 1, tmp_path, 0.0, [10_000.0]))
    tap._leave(slowest)
    assert tap.lost_workers == is_lost


def test_one_epoch_goes_on_with_an_iterator_and_the_next_is_a_new_one(rank):
    tap = Listener(["a", "b", "c"], rank)
    tap.restored = iter(["c"])
    assert [list(tap.epoch()), list(tap.epoch())] == [["c"], ["a", "b", "c"]]


@pytest.mark.parametrize("share, batches", [(1.0, 20), (0.5, 10)])
def test_an_epoch_leaves_time_for_the_next(monkeypatch, share, batches):
    clock = SimpleNamespace(monotonic=count(0, 1e-3).__next__)
    monkeypatch.setattr("millrace.audit.runner.listener.time", clock)
    ticking = SimpleNamespace(left=iter(range(21, 0, -1)).__next__)
    tap = Listener(plain.good(400, num_workers=0), ticking)
    assert len(list(tap.epoch(share))) == batches and tap.ended == [False]


@pytest.mark.parametrize(
    "one, other",
    [
        (torch.zeros(2), torch.zeros(2, 1)),
        (torch.zeros(2), torch.zeros(2, dtype=torch.float64)),
        (np.zeros(2), np.ones(2)),
        ({"a": 1}, {"b": 1}),
        ({1, 2}, {1, 3}),
        (torch.tensor([1j]), torch.tensor([1j]).conj()),
        (["1"], [1]),
        (Slotted(1), Slotted(2)),
        (OneSlot(1), OneSlot(2)),
        (Path("a"), Path("b")),
        (datetime(2026, 1, 1), datetime(2026, 1, 2)),
        (torch.tensor([0, 1]).to_sparse(), torch.tensor([1, 0]).to_sparse()),
        (nested(0), nested(1)),
        (Column(1), Column(2)),
        (plain.Dots(a=1), plain.Dots(a=2)),
    ],
)
def test_contents_that_differ_have_other_digests(one, other):
    assert digest(one) != digest(other)
    assert digest(one) == digest(one)


@pytest.mark.parametrize(
    "one, other",
    [
        ({0, 8}, {8, 0}),
        ((1, [2]), [1, (2,)]),
        (2**70, 2**70),
        (np.int64(3), 3),
        (np.array(["a".upper() + "B"], object), np.array(["AB"], object)),
    ],
)
def test_contents_that_are_alike_have_one_digest(one, other):
    assert digest(one) == digest(other)


def test_a_batch_of_parts_of_other_lengths_has_no_rows():
    assert rows(plain.Dots(a=torch.zeros(2), b=["x", "y"])) is not None
    assert rows({"a": torch.zeros(2), "b": ["x", "y", "z"]}) is None
    assert (rows(torch.tensor(3.0)), rows(torch.zeros(0, 2))) == (None, [])
    pair = Pair(torch.arange(2), torch.zeros(2))
    assert rows(pair) == [fields(Pair(*row)) for row in zip(*pair, strict=True)]


def test_rows_of_a_request_are_names_and_no_indices_of_the_data_set():
    # A data set that is asked for whole batches may give its first batch for 0, not its first row.
    assert index_list(SimpleNamespace(rows=np.array([7, 3]))) == ["7", "3"]
    assert index_list([7, np.int64(3)]) == [7, 3] and index_list(7) == [7]
    # Objects that a sampler hands out are known by their ids.
    assert index_list([SimpleNamespace(id="cut-1")]) == ["cut-1"] and index_list("ab") == ["ab"]


@pytest.mark.parametrize("own, given, used", [(5, None, 2), (1, None, 1), (0, 3, 3)])
def test_two_workers_show_what_more_would_show(rank, own, given, used):
    assert Listener(plain.good(num_workers=own), rank, given).core.num_workers == used


@pytest.mark.parametrize(
    "batch, size",
    [
        ({"a": "x", "b": torch.zeros(4, 2)}, 4),
        (torch.tensor(3.0), 1),
        ({"a": ["x", "y"]}, 2),
        (["x", "y", "z"], 3),
        ({"a": 5}, 1),
        (nested(3), 2),
    ],
)
def test_a_batch_is_as_large_as_its_first_tensor_or_list(batch, size):
    assert batch_size(batch) == size


OF_A_WORKER = """Caught ValueError in DataLoader worker process 0.
Original Traceback (most recent call last):
  File "/site-packages/torch/utils/data/fetch.py", line 1, in fetch
  File "/home/me/data.py", line 7, in __getitem__
  File "/site-packages/torch/functional.py", line 2, in stack
ValueError: no
"""
OF_A_CHILD = """Traceback (most recent call last):
  File "/home/me/data.py", line 7, in <module>
"""


def inner() -> None:
    raise KeyError("x")


def test_an_error_is_told_by_its_innermost_place_in_the_users_code():
    seen = described(ValueError(OF_A_WORKER))
    assert seen["text"] == "ValueError: no (Caught ValueError in DataLoader worker process 0)"
    assert seen["where"] == 'File "/home/me/data.py", line 7, in __getitem__'
    with pytest.raises(KeyError) as caught:
        inner()
    seen = described(caught.value)
    assert (seen["type"], seen["text"]) == ("KeyError", "KeyError: 'x'")
    assert seen["where"] == seen["trace"][0] and seen["where"].endswith(" in inner")
    assert described(MillraceError("there is none"))["text"] == "there is none"


@pytest.mark.parametrize(
    "log, why",
    [
        (
            f"a\n{OF_A_CHILD}ValueError: one\n\n{OF_A_CHILD}ImportError: two\nb\n",
            ": ImportError: two",
        ),
        (OF_A_CHILD, ""),
        ("ImportError: printed\n", ""),
        ("", ""),
    ],
)
def test_a_worker_that_died_is_told_by_the_last_traceback_of_its_log(log, why):
    """As one does that cannot read what spawn has sent to it."""
    death = RuntimeError("DataLoader worker (pid 7) exited unexpectedly with exit code 1. Details")
    text = "a loader worker (pid 7) ended unexpectedly with exit code 1"
    assert described(death, log)["text"] == f"{text}{why}"
    death = RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed. Details")
    assert described(death, log)["text"].endswith("(pid 7) was killed by SIGKILL")
    assert described(ValueError("no"), log)["text"] == "ValueError: no"
