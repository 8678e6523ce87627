"""The list of modules in docs/architecture.md, out of their docstrings: `python -m
tests.workflow.module_list` writes it, a test compares it."""

from __future__ import annotations

import ast
from itertools import groupby
from pathlib import Path

from tests.workflow.workflow import ROOT

PAGE = ROOT / "docs/architecture.md"
PACKAGE = ROOT / "scripts/millrace"
TITLE = "## Every module\n"
HEAD = """
Written by `make docs` out of the docstrings. Paths are below `scripts/millrace/`.
"""


def summary(path: Path) -> str:
    """The first paragraph of a module's docstring, on one line."""
    text = ast.get_docstring(ast.parse(path.read_text())) or ""
    first = text.split("\n\n")[0]
    return " ".join(first.split())


def module_list() -> str:
    """The whole section."""
    parts = [TITLE, HEAD]
    for folder, modules in groupby(sorted(PACKAGE.rglob("*.py"), key=_place), lambda p: p.parent):
        room = folder.relative_to(PACKAGE).as_posix()
        parts.append(f"\n**`{room}/`** {summary(folder / '__init__.py')}\n\n")
        for path in modules:
            if path.name != "__init__.py":
                parts.append(f"- `{path.name}`: {summary(path)}\n")
    return "".join(parts)


def _place(path: Path) -> tuple[Path, str]:
    return path.parent, path.name


if __name__ == "__main__":
    before = PAGE.read_text().split(TITLE)[0]
    PAGE.write_text(before + module_list())
