"""The audit against loaders whose answer is known, under every start method.

`python -m tests.bench.bench_audit` audits each loader of tests/audit/mutants `--repeats` times and
prints a table of the verdicts, what is wrong, and what was not the same each time.
"""

from __future__ import annotations

import argparse
import platform
import resource
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import torch

from tests.audit.mutants import METHODS, Case, files, table
from tests.audit.running import audits

PATIENT = ["--timeout", "240"]  # the machine may be busy


def audit_all(
    cases: list[Case], methods: list[str], folder: str
) -> Iterator[tuple[Case, str, dict]]:
    """Each case under each of its start methods: the case, the method and the result."""
    for case in cases:
        for method in methods:
            if method not in case.methods:
                continue
            argv = [*case.argv(folder), *PATIENT, "--start-method", method]
            [result] = audits({case.name: argv}, case.within).values()
            yield case, method, result


def failing(result: dict) -> set[str]:
    """Entries that fail, but for `end`: that a bug raises or dies is part of it."""
    entries = result["entries"].items()
    return {name for name, found in entries if found["verdict"] == "fail"} - {"end"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pattern", default="", help="only loaders with this in their names")
    parser.add_argument("--methods", nargs="*", default=METHODS)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()

    cases = [case for name, case in table().items() if args.pattern in name]
    wrong = []
    fails = defaultdict(set)
    print("| entry | loader | expected | method | verdict |", "|---|---|---|---|---|", sep="\n")
    with tempfile.TemporaryDirectory() as folder:
        files.write(Path(folder) / "files")
        for case, method, result in audit_all(
            cases * args.repeats, args.methods, f"{folder}/files"
        ):
            verdict = result["entries"].get(case.entry, {}).get("verdict", "-")
            expected = "fail" if case.fails else "no fail"
            print(f"| {case.entry} | {case.name} | {expected} | {method} | {verdict} |", flush=True)
            problem = case.judge(result)
            if problem:
                wrong.append(f"{case.entry} {case.name} under {method}: {problem}")
            fails[case.entry, case.name, method].add(frozenset(failing(result)))
    unstable = [name for name, seen in fails.items() if len(seen) > 1]
    print("wrong:", *wrong, "not the same each time:", *unstable, sep="\n  ")
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    minutes = round((used.ru_utime + used.ru_stime) / 60, 1)
    print(f"torch {torch.__version__}, Python {platform.python_version()}, {minutes} CPU minutes")


if __name__ == "__main__":
    main()
