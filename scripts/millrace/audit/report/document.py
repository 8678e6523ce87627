"""What an audit found as one JSON-able dict, from which terminal, page and exit code come."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from millrace.audit.checks.entries import ENTRIES
from millrace.audit.checks.findings import VERDICTS as KNOWN_VERDICTS
from millrace.audit.checks.findings import Finding
from millrace.audit.report import gate
from millrace.audit.runner.probes import Result

VERSION = 1
PLACE = ("python", "torch", "start_method")  # of what the loader runs in
EMPTY: tuple[Any, ...] = ("", None, [], {})
SHOWN = ("look", "model")  # probes of which something is shown
VERDICTS = (*reversed(KNOWN_VERDICTS), "ignored")  # the worst first


def document(findings: Iterable[Finding], context: Mapping[str, Any]) -> dict:
    """The report. An entry has the verdict of its worst finding; without any it is not decidable.

    `context`: loader, command, probes (Results by name); if wanted ignored (reasons by entry), only
    (names).
    """
    probes = context["probes"]
    look, model = ((probes[name].data or [{}])[0] if name in probes else {} for name in SHOWN)
    learned = model.get("overfit")
    report = {
        "version": VERSION,
        "loader": context["loader"],
        "command": context["command"],
        "environment": {key: look[key] for key in PLACE if key in look},
        "measured": {"Overfit one batch (loss)": learned} if learned else {},
        "counts": dict.fromkeys(VERDICTS, 0),
        "entries": _entries(findings, context.get("only") or ENTRIES),
        "probes": [_probe(name, result) for name, result in probes.items()],
    }
    return gate.with_reasons(report, context.get("ignored", {}))


def _entries(findings: Iterable[Finding], names: Iterable[str]) -> list[dict]:
    """Each entry with its findings, the worst first."""
    found: dict[str, list[dict]] = {name: [] for name in ENTRIES if name in names}
    for finding in sorted(findings, key=lambda each: VERDICTS.index(each.verdict)):
        known = ENTRIES[finding.entry]
        row = asdict(finding)
        del row["entry"]
        if finding.verdict == "fail" and not finding.fix:
            row["fix"] = known.fix
        found.get(finding.entry, []).append(row)
    nothing = asdict(Finding("", "not decidable", "no check gave a result"))
    return [
        {
            "name": name,
            "title": ENTRIES[name].title,
            "link": ENTRIES[name].urls[0],
            "findings": rows or [{**nothing, "entry": name}],
        }
        for name, rows in found.items()
    ]


def _probe(name: str, result: Result) -> dict:
    error = result.error.get("text", "")
    if result.error.get("where"):
        error += f" ({result.error['where']})"
    return {"name": name, "status": result.status, "seconds": result.seconds, "error": error}


def exit_code(document: dict, strict: bool = False) -> int:
    """0; 1 with a fail (`strict`: or a verdict not decidable); 2 not loadable; 3 the loader hung or
    died."""
    look = next(each["status"] for each in document["probes"] if each["name"] == "look")
    if look == "raised":
        return 2
    if look != "ok" or "end" in [entry["name"] for entry in select(document, "fail")]:
        return 3
    return int(
        document["counts"]["fail"] > 0 or (strict and document["counts"]["not decidable"] > 0)
    )


def select(document: dict, verdict: str) -> list[dict]:
    """The entries of a verdict."""
    return [entry for entry in document["entries"] if entry["verdict"] == verdict]


def remarks(document: dict) -> dict[str, list[tuple[str, ...]]]:
    """What is neither fail nor pass, by title: names and what is said of them; one reason is one
    row."""
    undecided: dict[tuple[str, str], list[str]] = {}
    for entry in select(document, "not decidable"):
        for row in entry["findings"]:
            if row["verdict"] == "not decidable":
                said = row["cause"], row["needs"] and f"needs {row['needs']}"
                undecided.setdefault(said, []).append(entry["name"])
    ignored = [
        (e["name"], e["findings"][0], f"reason: {e['reason']}") for e in select(document, "ignored")
    ]
    return {
        "Not decidable": [(" ".join(names), *said) for said, names in undecided.items()],
        "Ignored": [
            (name, f"{row['verdict']}: {row['cause']}", reason) for name, row, reason in ignored
        ],
        "Measured": [(name, shown(value)) for name, value in document["measured"].items()],
    }


def pairs(mapping: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What evidence says, a name and a line each, without what is empty and without stacks."""
    return [
        (str(key), shown(each))
        for key, each in mapping.items()
        if each not in EMPTY and key != "trace"
    ]


def shown(value: Any) -> str:
    """A value of the evidence on one line: the first of a long list, no control characters."""
    if isinstance(value, Mapping):
        return f"({', '.join(map(': '.join, pairs(value)))})"
    if isinstance(value, list | tuple):
        more = [f"... {len(value)} in all"] if len(value) > 12 else []
        return f"[{', '.join([*map(shown, value[:12]), *more])}]"
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)
