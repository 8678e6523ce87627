"""Edges of duration buckets: the policies that choose them, and the ids of buckets. The parse uses
it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from millrace.common.errors import MillraceError

if TYPE_CHECKING:
    from millrace.asr.buckets.histogram import DurationHistogram

DEFAULT_EDGES = (0.0, 3.0, 5.0, 7.0, 10.0, 15.0, 20.0, 30.0)


@dataclass(frozen=True)
class GivenEdges:
    """Edges that somebody chose. Raises MillraceError unless they are two or more, rising, from
    0."""

    known_before_build: tuple[float, ...] = DEFAULT_EDGES

    def __post_init__(self) -> None:
        try:
            values = tuple(float(edge) for edge in self.known_before_build)
        except (TypeError, ValueError):
            values = ()
        is_rising = all(low < high for low, high in pairwise(values))
        is_finite = all(map(math.isfinite, values))
        if len(values) < 2 or values[0] < 0 or not (is_rising and is_finite):
            given = list(self.known_before_build)
            problem = (
                f"bucket edges must be at least two rising numbers of seconds from 0, not {given}"
            )
            raise MillraceError(problem, "edges", "For example 0 3 5 7 10 15 20 30")
        object.__setattr__(self, "known_before_build", values)

    @property
    def last_edge(self) -> float:
        return self.known_before_build[-1]

    def edges(self, histogram: DurationHistogram) -> tuple[float, ...]:
        return self.known_before_build

    def as_dict(self) -> None:
        return None


@dataclass(frozen=True)
class AutoEdges:
    """The `num_buckets` buckets up to `last_edge` that pad least."""

    num_buckets: int = 7
    last_edge: float = 30.0
    known_before_build = None

    def edges(self, histogram: DurationHistogram) -> tuple[float, ...]:
        return histogram.least_padding(self.num_buckets)

    def as_dict(self) -> dict[str, float]:
        return asdict(self)


# How edges are chosen, n + 1 rising ones in seconds for n buckets: `known_before_build` or None;
# `last_edge`, where the histogram ends; `edges` for the durations of train; `as_dict`, what
# computed edges depend on: config keys with their values, which become flags, and anything else
# that tells two policies apart.
EdgePolicy = GivenEdges | AutoEdges
# A new policy is a class and a line here (and a name in the schema); it gets num_buckets and
# last_edge.
POLICIES: dict[str, Callable[[int, float], EdgePolicy]] = {
    "default": lambda num_buckets, last_edge: GivenEdges(),
    "seed": lambda num_buckets, last_edge: GivenEdges(),  # the earlier name of `default`
    "auto": AutoEdges,
}


def edge_policy(
    choice: str | Sequence, num_buckets: int = 7, last_edge: float = 30.0
) -> EdgePolicy:
    """The policy of a config or command line: a name of POLICIES, alone or in a list, or edges in
    seconds."""
    choice = [choice] if isinstance(choice, str) else list(choice)
    if choice and choice[0] in POLICIES:
        return POLICIES[choice[0]](num_buckets, last_edge)
    return GivenEdges(tuple(choice))


def bucket_ids(edges: Sequence[float]) -> list[str]:
    """`b_<low>_<high>` of every bucket, as in b_0_3 or b_2.5_4."""
    return [f"b_{low:.10g}_{high:.10g}" for low, high in pairwise(edges)]
