"""`python -m millrace`: the steps of all lanes, with one line each."""

from __future__ import annotations

import ast
from pathlib import Path


def steps() -> dict[str, str]:
    """Module of every step -> first line of its docstring. Nothing is imported: that would load torch."""
    table = {}
    for path in sorted(Path(__file__).parent.glob("*/*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        if any(isinstance(node, ast.FunctionDef) and node.name == "make_parser" for node in tree.body):
            line = (ast.get_docstring(tree) or "").partition("\n")[0]
            table[f"millrace.{path.parent.name}.{path.stem}"] = line
    return table


def main() -> None:
    """Print the table."""
    listed = steps()
    width = max(map(len, listed))
    print("Steps: python -m <step> --help\n")
    print("\n".join(f"{name:<{width}}  {line}" for name, line in listed.items()))
    print("\nRules and their targets: snakemake --list-rules")


if __name__ == "__main__":
    main()
