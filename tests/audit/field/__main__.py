"""Audit the loaders of the field and compare with what was expected of them.

`python -m tests.audit.field [--package NAME] [--page FILE]`, in an environment that has the
packages (requirements-field.txt). Each audit runs in a process of its own.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from millrace.audit.checks.findings import VERDICTS
from tests.audit.field.data import FOLDER
from tests.audit.field.expected import FIELD, Expected
from tests.audit.running import audits

DISTRIBUTIONS = {"streaming": "mosaicml-streaming"}
TIMEOUT = 120  # seconds of one audit


class Seen(NamedTuple):
    """What the audit said of one loader."""

    verdicts: dict[str, str]  # of the entries that are expected, or that fail
    evidence: str  # of the worst finding


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--package", default="", help="loaders of this package alone")
    parser.add_argument("--page", type=Path, help="write the table as Markdown")
    args = parser.parse_args()
    run = []
    for row in FIELD:
        if args.package not in ("", row.package):
            continue
        if find_spec(row.package) is None:
            print(f"not installed: {row.package}, for {row.loader}")
            continue
        run.append((row, audited(row)))
        print(_line(*run[-1]), flush=True)
    print(summary(run))
    if args.page:
        args.page.write_text(page(run))
    return int(any(mismatches(row, seen) for row, seen in run))


def audited(row: Expected) -> Seen:
    """Return the worst verdict of each entry that is expected or fails, and its evidence."""
    argv = ["--loader", f"tests.audit.field.{row.loader}", *row.options.split()]
    with tempfile.TemporaryDirectory() as folder:
        os.environ[FOLDER] = folder
        [found] = audits({row.loader: [*argv, "--timeout", str(TIMEOUT)]}).values()
    entries = found["entries"].items()
    shown = {
        entry: said for entry, said in entries if entry in row.verdicts or said["verdict"] == "fail"
    }
    evidence = ""
    if shown:
        worst = max(shown.values(), key=lambda said: VERDICTS.index(said["verdict"]))
        evidence = worst["causes"][0]
        if worst["evidence"]:
            evidence += f" {worst['evidence']}"
    verdicts = {entry: said["verdict"] for entry, said in shown.items()}
    return Seen(verdicts, evidence[:300])


def mismatches(row: Expected, seen: Seen) -> dict[str, str]:
    """Return the entries that have another verdict than expected, with what was said."""
    entries = {**row.verdicts, **seen.verdicts}
    wrong = {}
    for entry in entries:
        found = seen.verdicts.get(entry, "nothing")
        if found != row.verdicts.get(entry):
            wrong[entry] = found
    return wrong


def summary(run: list[tuple[Expected, Seen]]) -> str:
    """Count false fails, defects that were named, and what was not decidable."""
    correct = [pair for pair in run if not pair[0].is_defect]
    defects = [pair for pair in run if pair[0].is_defect]
    false_fails = [row.loader for row, seen in run if _fails_beyond(seen.verdicts, row.verdicts)]
    named = [row.loader for row, seen in defects if not _fails_beyond(row.verdicts, seen.verdicts)]
    claims = [
        (row.loader, entry, seen.verdicts.get(entry))
        for row, seen in run
        for entry, verdict in row.verdicts.items()
        if verdict != "not decidable"
    ]
    undecided = [claim for claim in claims if claim[2] == "not decidable"]
    packages = {row.package for row, _ in run}
    blamed = f" ({', '.join(false_fails)})" if false_fails else ""
    return (
        f"{len(run)} loaders of {len(packages)} packages: {len(correct)} correct,"
        f" {len(defects)} with a defect. False fails: {len(false_fails)}{blamed}."
        f" Defects named: {len(named)} of {len(defects)}."
        f" Not decidable: {len(undecided)} of {len(claims)} verdicts."
    )


def _fails_beyond(verdicts: dict[str, str], others: dict[str, str]) -> list[str]:
    """Return the entries that fail here, and not there."""
    fails = [entry for entry, verdict in verdicts.items() if verdict == "fail"]
    return [entry for entry in fails if others.get(entry) != "fail"]


def page(run: list[tuple[Expected, Seen]]) -> str:
    """Return the table as Markdown."""
    versions = sorted({_version(row.package) for row, _ in run} | {_version("torch")})
    lines = [
        "# A field of real loaders",
        "",
        "`python -m tests.audit.field` audits loaders of released packages, written as their",
        "documentation or the reporters of their issues write them (`tests/audit/field/`). What is",
        "expected was committed before the audit was run; each change since names its reason.",
        "Entries that are not named did not fail. This page is written by the command.",
        "",
        summary(run),
        f"Of {len(FIELD)} loaders in the field these were not run: {_not_run(run)}.",
        "",
        f"Versions: {', '.join(versions)}.",
        "",
        "| package | loader | options | expected | found | why | evidence |",
        "|---|---|---|---|---|---|---|",
    ]
    for row, seen in run:
        name = row.loader.partition(":")[2]
        options = row.options.replace("tests.audit.field.", "")
        found = _said(seen.verdicts) if mismatches(row, seen) else "the same"
        cells = [row.package, f"`{name}`", f"`{options}`", _said(row.verdicts), found, row.why]
        evidence = seen.evidence.replace("|", "\\|").replace("\n", " ")
        lines.append("| " + " | ".join([*cells, evidence[:160]]) + " |")
    return "\n".join(lines) + "\n"


def _not_run(run: list[tuple[Expected, Seen]]) -> str:
    done = {(row.loader, row.options) for row, _ in run}
    left = [row.loader for row in FIELD if (row.loader, row.options) not in done]
    return ", ".join(left) or "none"


def _said(verdicts: dict[str, str]) -> str:
    return ", ".join(f"{entry} {verdict}" for entry, verdict in verdicts.items())


def _version(package: str) -> str:
    try:
        name = DISTRIBUTIONS.get(package, package)
        return f"{name} {version(name)}"
    except PackageNotFoundError:
        return f"{package}, not installed"


def _line(row: Expected, seen: Seen) -> str:
    word = "NOT" if mismatches(row, seen) else "ok "
    wanted = f" expected {row.verdicts}" if mismatches(row, seen) else ""
    return f"{word} {row.loader} {row.options}: {seen.verdicts}{wanted}: {seen.evidence}"


if __name__ == "__main__":
    raise SystemExit(main())
