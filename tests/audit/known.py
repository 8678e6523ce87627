"""The audit on loaders whose answer is known: `python -m tests.audit.known [WORD]` prints expected
and found."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable
from pathlib import Path

from millrace.audit.checks.findings import Finding
from millrace.audit.runner.guard import Guard
from tests.audit.expectations import KNOWN, Known
from tests.audit.running import run

FOLDER = Path(__file__).parent


def worst(known: Known, guard: Guard, only: Iterable[str] = ()) -> dict[str, Finding]:
    """The finding that decides each entry."""
    options = known.options.replace("--loop ", f"--loop {FOLDER}/loaders/")
    argv = ["--loader", f"{FOLDER}/{known.loader}", *options.split(), "--only", ",".join(only)]
    _, findings = run(guard, argv)
    return {finding.entry: finding for finding in reversed(findings)}


def mismatches(known: Known, entries: dict[str, Finding]) -> dict[str, Finding | None]:
    """Entries with another verdict than expected, and those that fail though nothing is wrong with
    them."""
    fails = [name for name, each in entries.items() if each.verdict == "fail"]
    wrong = {name: entries.get(name) for name in [*known.verdicts, *fails]}
    return {
        name: each
        for name, each in wrong.items()
        if not each or each.verdict != known.verdicts.get(name)
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("word", nargs="?", default="")
    args = parser.parse_args()
    with Guard() as guard:
        for known in KNOWN:
            if re.search(args.word, f"{known.loader} {known.options}"):
                show(known, worst(known, guard))


def show(known: Known, entries: dict[str, Finding]) -> None:
    wrong = mismatches(known, entries)
    print(f"| {known.loader} | {known.options} | {known.verdicts} | not: {list(wrong)} |")
    for name, each in entries.items():
        if name in {**known.verdicts, **wrong}:
            print(f"    {name} {each.verdict}: {each.cause or each.needs} {dict(each.evidence)}")


if __name__ == "__main__":
    main()
