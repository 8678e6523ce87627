"""What probes wrote as JSON, as the records that checks ask for."""

from __future__ import annotations

from functools import cache
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

types_of = cache(get_type_hints)


def parse(kind: Any, value: Any) -> Any:
    """A value as the type that its reader names. Records are dicts of their fields, at any depth:
    what they do not name is left out, lists and dicts that were not written are empty."""
    outer, inner = get_origin(kind), get_args(kind)
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
