"""What probes wrote as JSON, as the records that checks ask for: epochs and batches."""

from __future__ import annotations

from functools import cache
from types import UnionType
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints

Sample = dict[str, str]  # a digest for each field; the field "" is the whole sample
States = dict[str, str]  # digests of the states of random generators, by name


class Batch(NamedTuple):
    """One batch, as the loop received it, and what was seen of the process that made it."""

    batch: str  # its digest
    size: int  # samples
    worker: int | None
    indices: list[Any] | None  # what the sampler asked for; None for a stream
    samples: list[Sample]  # the batch itself as the only sample, if its samples are not known
    start: States  # when the worker began; empty if nobody knows
    random: States  # when the batch was made; empty if nobody saw how
    pid: int = 0


class Epoch(NamedTuple):
    """What one rank received in one epoch, of the loader alone."""

    batches: list[Batch]
    ended: bool  # False: only its beginning was read
    length: int | None  # of the loader, as it says
    left: bool = False  # it ended before the DataLoader behind it did


types_of = cache(get_type_hints)


def parse(kind: Any, value: Any) -> Any:
    """A value as the type that its reader names. Records are dicts of their fields, at any depth:
    what they do not name is left out, lists and dicts that were not written are empty."""
    outer = get_origin(kind)
    inner = get_args(kind)
    if value is None:
        return None
    if outer is UnionType:
        return parse(inner[0], value)
    if outer is list:
        return [parse(inner[0], item) for item in value]
    if outer is dict:
        return {name: parse(inner[1], item) for name, item in value.items()}
    if not hasattr(kind, "_fields"):
        return value
    fields = {}
    for name, field in types_of(kind).items():
        if name in value:
            fields[name] = parse(field, value[name])
        elif get_origin(field) in (list, dict):
            fields[name] = get_origin(field)()
    return kind(**fields)
