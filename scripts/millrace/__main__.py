"""`python -m millrace`: the steps of all lanes; `python -m millrace status`: where the workflow
stands."""

from __future__ import annotations

import argparse
import ast
import sys
import time
from pathlib import Path

from millrace.common.errors import printable


def steps() -> dict[str, str]:
    """Module of every step -> first paragraph of its docstring. Nothing is imported: that would
    load torch."""
    table = {}
    for path in sorted(Path(__file__).parent.glob("*/*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        if any(
            isinstance(node, ast.FunctionDef) and node.name == "make_parser" for node in tree.body
        ):
            summary = (ast.get_docstring(tree) or "").partition("\n\n")[0]
            name = f"millrace.{path.parent.name}.{path.stem}"
            table[name.removesuffix(".__main__")] = " ".join(summary.split())
    return table


def show_steps() -> None:
    """Print the table."""
    listed = steps()
    width = max(map(len, listed))
    print("Steps: python -m <step> --help\n")
    print("\n".join(f"{name:<{width}}  {line}" for name, line in listed.items()))
    print("\nRules and their targets: snakemake --list-rules")
    print("Where the workflow stands: python -m millrace status")


def show_status() -> None:
    """Print one screen."""
    from millrace.common.workflow import status

    print("\n".join(map(printable, status.screen(time.time()))))


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m millrace", description="The steps of all lanes."
    )
    what = "where the workflow of this folder stands: jobs, failures, the last run; only reads"
    parser.add_argument("command", nargs="?", choices=["status"], help=what)
    args = parser.parse_args()
    if not args.command:
        return show_steps()
    try:
        show_status()
    except (OSError, LookupError, ValueError) as error:  # of a file that was just replaced
        sys.exit(f"Millrace: {error}")


if __name__ == "__main__":
    main()
