"""Anchors of YAML: a few lines of them can stand for more values than memory holds."""

from __future__ import annotations

import yaml

# Config files of ours have some hundred values.
MOST_VALUES = 100_000


class TooManyValues(yaml.MarkedYAMLError):
    """The document would take all memory as soon as somebody prints or copies it."""


def check_anchors(root: yaml.Node | None) -> None:
    """Raise TooManyValues if a document with all its anchors written out has too many values."""
    if root is not None and _values(root, {}) > MOST_VALUES:
        problem = f"its anchors stand for more than {MOST_VALUES:,} values"
        raise TooManyValues(problem=problem, problem_mark=root.start_mark)


def _values(node: yaml.Node, counted: dict[yaml.Node, int]) -> int:
    if node in counted:
        return counted[node]
    # Until it is counted: an anchor that stands within itself has no end.
    counted[node] = MOST_VALUES + 1
    below: list[yaml.Node] = []
    if isinstance(node, yaml.SequenceNode):
        below = node.value
    elif isinstance(node, yaml.MappingNode):
        below = [part for pair in node.value for part in pair]
    counted[node] = 1 + sum(_values(part, counted) for part in below)
    return counted[node]
