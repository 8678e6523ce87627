"""What an audit found as one JSON-able dict, from which terminal, page and exit code come."""

from __future__ import annotations

import reprlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict
from typing import Any, NamedTuple

from millrace.audit.checks.entries import ENTRIES
from millrace.audit.checks.findings import VERDICTS as KNOWN_VERDICTS
from millrace.audit.checks.findings import Finding
from millrace.audit.report import gate, unreached
from millrace.audit.runner.probes import Result

VERSION = 1
PLACE = ("python", "torch", "start_method")  # of what the loader runs in
EMPTY: tuple[Any, ...] = (
    "",
    None,
    [],
    {},
)
SHORT = reprlib.Repr()
SHORT.maxlist = SHORT.maxtuple = SHORT.maxdict = 12
VERDICTS = (*reversed(KNOWN_VERDICTS), "ignored")  # the worst first


class Run(NamedTuple):
    """What was run: the loader's name, the command, its seconds, how the probes ended; the entries
    that were asked for, if not all, and why some do not count."""

    loader: str
    command: str
    timeout: float
    probes: Mapping[str, Result]
    only: Collection[str]
    ignored: Mapping[str, str]


def document(findings: Iterable[Finding], run: Run) -> dict:
    """The report. An entry has the verdict of its worst finding; without any it is not decidable.

    findings.schema.json, beside this file, describes it.
    """
    look = {}
    if run.probes["look"].data:
        look = run.probes["look"].data[0]
    entries = _entries(findings, run.only or ENTRIES)
    report = {
        "version": VERSION,
        "loader": run.loader,
        "command": run.command,
        "environment": {key: look[key] for key in PLACE if key in look},
        "counts": dict.fromkeys(VERDICTS, 0),
        "entries": entries,
        "probes": [_probe(name, result) for name, result in run.probes.items()],
        "unreached": unreached.found(entries, run.probes, run.timeout),
    }
    return gate.with_reasons(report, run.ignored)


def _entries(findings: Iterable[Finding], names: Collection[str]) -> list[dict]:
    """Each entry with its findings, the worst first."""
    found: dict[str, list[dict]] = {name: [] for name in ENTRIES}
    for finding in sorted(findings, key=lambda finding: VERDICTS.index(finding.verdict)):
        row = asdict(finding)
        if finding.verdict == "fail" and not finding.fix:
            row["fix"] = ENTRIES[finding.entry].fix
        found[finding.entry].append(row)

    entries = []
    for name, known in ENTRIES.items():
        nothing = Finding(name, "not decidable", "no check gave a result")
        entry = {
            "name": name,
            "title": known.title,
            "link": known.urls[0],
            "findings": found[name] or [asdict(nothing)],
        }
        if name in names:
            entries.append(entry)
    return entries


def _probe(name: str, result: Result) -> dict:
    error = result.error.get("text", "")
    if result.error.get("where"):
        error += f" ({result.error['where']})"
    return {
        "name": name,
        "status": result.status,
        "seconds": result.seconds,
        "error": error,
    }


def exit_code(document: dict, strict: bool = False) -> int:
    """0; 1 with a fail (`strict`: or a verdict not decidable); 2 not loadable; 3 the loader hung or
    died."""
    look = gate.first_look(document)
    if look["status"] == "raised":
        return 2
    ended = [entry["name"] for entry in select(document, "fail")]
    if look["status"] != "ok" or "end" in ended:
        return 3
    counts = document["counts"]
    if counts["fail"]:
        return 1
    return int(strict and counts["not decidable"] > 0)


def select(document: dict, verdict: str) -> list[dict]:
    """The entries of a verdict."""
    return [entry for entry in document["entries"] if entry["verdict"] == verdict]


def not_reached(document: dict) -> str:
    """What the time did not suffice for, and how much would; "" if it did."""
    rest = document["unreached"]
    if not rest:
        return ""
    names = " ".join(rest["entries"])
    return (
        f"{names}: the {rest['timeout']:g} s were over; as fast as it went here, all of it takes"
        f" about {rest['needed']} s: --timeout {rest['needed']}"
    )


class Told(NamedTuple):
    """What is told of a finding."""

    cause: str
    evidence: list[tuple[str, str]]  # a name and a line each
    remedy: str  # a fix, what would decide it, or why it is ignored


def told(entry: dict) -> list[Told]:
    """What is told of an entry: the findings that have the worst verdict."""
    worst = entry["findings"][0]["verdict"]
    rows = []
    for row in entry["findings"]:
        if row["verdict"] == worst:
            needs = f"needs {row['needs']}" if row["needs"] else ""
            remedy = entry["reason"] or row["fix"] or needs
            rows.append(Told(row["cause"], pairs(row["evidence"]), remedy))
    return rows


def pairs(mapping: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What evidence says, a name and a line each, without what is empty and without stacks: of long
    lists the first."""
    lines = []
    for key, value in mapping.items():
        if value not in EMPTY and key != "trace":
            lines.append((str(key), value if isinstance(value, str) else SHORT.repr(value)))
    return lines
