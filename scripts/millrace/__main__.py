"""`python -m millrace`: the steps of all lanes; `python -m millrace status`: where the workflow
stands."""

from __future__ import annotations

import argparse
import ast
import os
import shutil
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


def show_status(watch: bool) -> None:
    """Print one screen; with `watch` again and again. Lines are cut to a terminal's width."""
    from millrace.common.workflow import status

    is_terminal = sys.stdout.isatty()
    while True:
        width = shutil.get_terminal_size().columns if is_terminal else None
        text = "\n".join(printable(line)[:width] for line in status.screen(time.time()))
        print(f"\x1b[H\x1b[J{text}" if is_terminal and watch else text, flush=True)
        if not watch:
            return
        time.sleep(2)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m millrace", description="The steps of all lanes."
    )
    what = "where the workflow stands: jobs, failures, sizes, the last run; only reads"
    parser.add_argument("command", nargs="?", choices=["status"], help=what)
    parser.add_argument("--watch", action="store_true", help="status: go on until Ctrl-C")
    parser.add_argument(
        "--directory", default=".", help="status: folder of results/ (default: this one)"
    )
    args = parser.parse_args()
    if not args.command:
        return show_steps()
    try:
        os.chdir(args.directory)
        show_status(args.watch)
    except KeyboardInterrupt:
        pass
    except (
        OSError,
        LookupError,
        ValueError,
    ) as error:  # no such folder; a file that was just replaced
        sys.exit(f"Millrace: {error}")


if __name__ == "__main__":
    main()
