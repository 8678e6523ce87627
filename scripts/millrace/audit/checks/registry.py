"""Findings, and the checks that make them of what the probes saw."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from millrace.audit.runner.registry import PROBES, Result

# From the best to the worst: an entry's verdict is the worst of its findings.
VERDICTS = ("not applicable", "pass", "not decidable", "fail")
MODULES = (
    "randomness",
    "contract",
    "normalisation",
    "transforms",
    "labels",
    "splits",
    "order",
    "restart",
)


@dataclass(frozen=True)
class Finding:
    """What was found on one entry. `evidence`: ids, seeds, shapes, bytes; `needs`: what would
    decide it."""

    entry: str
    verdict: str
    cause: str = ""
    evidence: Mapping[str, Any] = field(default_factory=dict)
    fix: str = ""
    needs: str = ""


Evidence = Mapping[str, Result]
Seen = dict[str, Any]  # by a probe
Ranks = list[Seen]  # if it runs in all ranks


@dataclass(frozen=True)
class Check:
    entry: str
    probes: tuple[str, ...]
    function: Callable[..., Iterable[Finding]]


CHECKS: list[Check] = []


def check(entry: str, probes: tuple[str, ...] = ()) -> Callable:
    """Register a check of an entry, which is called with what these probes saw if all ended well: a
    dict, or one for each rank. A check without probes is called with all results."""

    def register(function: Callable[..., Iterable[Finding]]) -> Callable:
        CHECKS.append(Check(entry, probes, function))
        return function

    return register


def load(only: Iterable[str] = ()) -> list[Check]:
    """All checks, or those of the entries named."""
    for family in MODULES:
        importlib.import_module(f"millrace.audit.checks.{family}")
    names = {each.lower() for each in only}
    return [each for each in CHECKS if not names or each.entry.lower() in names]


def judge(evidence: Evidence, checks: list[Check]) -> list[Finding]:
    """All findings; a check whose probe did not end well is not decidable, and says why."""
    findings: list[Finding] = []
    for each in checks:
        stopped = next((name for name in each.probes if evidence[name].status != "ok"), None)
        if stopped is None:
            seen = [
                evidence[name].data if PROBES[name].ranks else evidence[name].data[0]
                for name in each.probes
            ]
            findings += each.function(*seen) if each.probes else each.function(evidence)
        else:
            result = evidence[stopped]
            cause = f"the probe {stopped} {result.status}: {result.error.get('text', '')}".strip(
                ": "
            )
            findings.append(
                Finding(each.entry, "not decidable", cause, {"error": dict(result.error)})
            )
    return findings
