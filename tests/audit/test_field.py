"""The field of real loaders: its table and its factories fit together."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from millrace.audit.checks import entries
from millrace.audit.checks.findings import VERDICTS
from tests.audit.field.expected import FIELD, Expected

FOLDER = Path(__file__).parent / "field"
LONGEST = 15  # lines of a factory


def function(module: str, name: str) -> ast.FunctionDef:
    tree = ast.parse((FOLDER / f"{module}.py").read_text())
    found = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name]
    assert found, f"{module} has no {name}"
    return found[0]


@pytest.mark.parametrize("expected", FIELD, ids=lambda row: f"{row.loader} {row.options}")
def test_a_loader_of_the_field_is_short_and_has_a_reason(expected: Expected):
    factory = function(*expected.loader.split(":"))
    assert factory.end_lineno - factory.lineno < LONGEST
    assert expected.why.endswith(".")
    assert expected.verdicts
    assert set(expected.verdicts.values()) <= set(VERDICTS)
    for entry in expected.verdicts:
        entries.get(entry)


def test_the_field_has_sixty_loaders_of_twelve_packages_and_a_third_are_defects():
    assert len(FIELD) >= 60
    assert len({row.package for row in FIELD}) >= 12
    assert 0.25 < sum(row.is_defect for row in FIELD) / len(FIELD) < 0.45


def test_no_loader_stands_in_the_field_twice():
    assert len({(row.loader, row.options) for row in FIELD}) == len(FIELD)
