"""Where duration buckets begin and end: the default edges, those that a config may give, the names
of buckets, and which one a clip falls into."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from millrace.common.errors import MillraceError

if TYPE_CHECKING:
    import numpy as np

DEFAULT_EDGES = (0.0, 3.0, 5.0, 7.0, 10.0, 15.0, 20.0, 30.0)
NAMES = ("default", "seed")  # of the default edges; `seed` is the earlier one


def edges_of(choice: str | Sequence) -> tuple[float, ...]:
    """The edges of a config or command line: a name of NAMES, alone or in a list, or seconds.

    Raises MillraceError unless they are two or more, rising, from 0.
    """
    given = [choice] if isinstance(choice, str) else list(choice)
    if given and given[0] in NAMES:
        return DEFAULT_EDGES
    try:
        edges = tuple(float(edge) for edge in given)
    except (TypeError, ValueError):
        edges = ()
    is_rising = all(low < high for low, high in pairwise(edges))
    is_finite = all(map(math.isfinite, edges))
    if len(edges) < 2 or edges[0] < 0 or not (is_rising and is_finite):
        problem = f"bucket edges must be at least two rising numbers of seconds from 0, not {given}"
        raise MillraceError(problem, "edges", "For example 0 3 5 7 10 15 20 30")
    return edges


def problems(section: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with `edges` of the config's section."""
    try:
        edges_of(section["edges"])
    except MillraceError as error:
        yield f"edges: {error.problem}"


def bucket_ids(edges: Sequence[float]) -> list[str]:
    """`b_<low>_<high>` of every bucket, as in b_0_3 or b_2.5_4."""
    return [f"b_{low:.10g}_{high:.10g}" for low, high in pairwise(edges)]


def bucket_of(durations: np.ndarray, edges: Sequence[float]) -> np.ndarray:
    """int16 number of the bucket [low, high) of every duration (seconds).

    What is below the first edge joins the first bucket; the last edge itself, and what lies beyond,
    the last.
    """
    import numpy as np  # which the parse does without

    inner = np.asarray(edges[1:-1], np.float64)
    return np.searchsorted(inner, durations, side="right").astype(np.int16)
