"""docs/architecture.md names files and functions that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tests.workflow.module_list import PACKAGE, TITLE, module_list
from tests.workflow.workflow import ROOT

PAGE = (ROOT / "docs/architecture.md").read_text()
DECISION = re.compile(r"^\| [^|*]+ \| `([\w/]+\.py)` \| `(\w+)` \|$", re.MULTILINE)


def names_of(path: Path) -> set[str]:
    """Functions, classes and constants at the top of a module."""
    names = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
    return names


def test_each_decision_is_made_where_the_table_says():
    table = PAGE.split("## Where is it decided")[1].split(TITLE)[0]
    decisions = DECISION.findall(table)
    rows = [line for line in table.splitlines() if line.startswith("| ") and "`" in line]
    assert len(decisions) == len(rows) >= 40
    wrong = [
        f"{path}: {name}"
        for path, name in decisions
        if not (PACKAGE / path).is_file() or name not in names_of(PACKAGE / path)
    ]
    assert wrong == []


def test_each_path_on_the_page_exists():
    paths = re.findall(r"(?<![\w/.<])((?:[\w.-]+/)+[\w.-]+\.(?:py|md|smk|json|yaml|toml))\b", PAGE)
    made = ("results/", "partitions/", "built/", "logs/")
    missing = [
        path
        for path in sorted(set(paths))
        if not path.startswith(made)
        and not any((folder / path).exists() for folder in (ROOT, PACKAGE))
    ]
    assert len(paths) > 60 and missing == []


def test_the_list_of_modules_says_what_their_docstrings_say():
    assert TITLE + PAGE.split(TITLE)[1] == module_list(), "make docs"
