"""What an object holds, with the path to it."""

from __future__ import annotations

import random
from functools import partial
from types import SimpleNamespace

import pytest

from millrace.audit.runner.digest import members
from millrace.audit.runner.walk import parts, walk

RNG = random.Random(3)


class Slotted:
    __slots__ = ("rng",)

    def __init__(self) -> None:
        self.rng = RNG


class Drawing:
    def __call__(self) -> float:
        return RNG.random()

    def draw(self) -> None:
        """A method, bound to what it needs."""


class Calling:
    def __call__(self) -> float:
        return self.draw()

    def draw(self) -> float:
        return RNG.random()

    @staticmethod
    def shift() -> float:
        return 0.5


class Inheriting(Drawing): ...


class OfClass:
    rng = RNG


class Begun:
    """Needs it in __init__ only."""

    def __init__(self) -> None:
        self.first = RNG.random()


def closed_over(is_named: bool = False) -> object:
    rng = RNG
    if is_named:
        name = "rng"
    return lambda: (rng.random(), name)  # the cell of a name that is not bound is empty


def by_place(seed: int, rng: random.Random = RNG) -> None: ...


def by_name(*, rng: random.Random = RNG) -> None: ...


@pytest.mark.parametrize(
    "value, path",
    [
        (SimpleNamespace(dtype="float32", steps=[{"a": 1}, (Slotted(),)]), "steps.1.0.rng"),
        (partial(print, file=Slotted()), "keywords.file.rng"),
        (Drawing(), "RNG"),
        (Calling(), "RNG"),
        (Inheriting(), "RNG"),
        (OfClass(), "rng"),
        (Drawing().draw, "__self__.RNG"),
        (closed_over(), "rng"),
        (by_place, "rng"),
        (by_name, "rng"),
        (Begun(), ""),
    ],
)
def test_a_generator_is_found_where_it_is_held(value, path):
    found = [place for place, each in walk(value, code=True) if each is RNG]
    assert found == [path] * bool(path)


def test_circles_end_and_long_lists_are_looked_into_at_their_head():
    circle: list = [list(range(10**6))]
    circle.append(circle)
    assert len(list(walk(circle))) < 100


class StandIn:
    """As MONAI's for a package that is not installed."""

    def __getattr__(self, name: str) -> object:
        raise ImportError(f"No module named 'cupy', asked for {name}")


def test_a_stand_in_that_raises_whatever_it_is_asked_is_passed_over():
    holder = {"missing": StandIn(), "kept": [1]}
    assert [path for path, _ in walk(holder, "data")] == ["data", "data.kept", "data.kept.0"]
    assert not parts(StandIn())


class Library:
    """As llvmlite's, behind numba's functions."""

    __slots__ = ()

    def __getattr__(self, name: str) -> object:
        return Slotted()


def test_an_object_that_hands_out_what_stands_for_the_attributes_of_another_holds_none():
    assert parts(Library()) == list(members(Library())) == []
    assert list(walk([Library()], code=True))[1:] != []
