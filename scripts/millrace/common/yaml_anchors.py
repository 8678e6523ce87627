"""Anchors of YAML: a few lines of them can stand for more values than memory holds."""

from __future__ import annotations

from typing import Any

# Config files of ours have some hundred values.
_MOST_VALUES = 100_000
TOO_MANY = f"its anchors stand for more than {_MOST_VALUES:,} values"


def are_too_many(root: Any) -> bool:
    """Whether a document (a yaml.Node) with all its anchors written out has too many values."""
    return root is not None and _count(root, {}) > _MOST_VALUES


def _count(node: Any, counted: dict[Any, int]) -> int:
    if node in counted:
        return counted[node]
    # Until it is counted: an anchor that stands within itself has no end.
    counted[node] = _MOST_VALUES + 1
    total = 1
    if isinstance(node.value, list):  # of a sequence nodes, of a mapping pairs of them
        for item in node.value:
            parts = item if isinstance(item, tuple) else (item,)
            total += sum(_count(part, counted) for part in parts)
    counted[node] = total
    return total
