"""Findings and their verdicts, the checks that make them of what the probes saw, and what is said
where a probe or a check failed itself."""

from __future__ import annotations

import importlib
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, get_origin

from millrace.audit.checks.records import parse, types_of
from millrace.audit.runner.probes import Result, Seen

NO_LOADER = "an iterable of batches, or a DataLoader that keeps one iterator for all epochs"
LONGER = "a longer --timeout"  # begins what is needed where the time was over
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
    decide it.

        from millrace import audit

        for finding in audit.check("train.py:make_loader", only=["DP2"]):
            if finding.verdict == "fail":
                print(finding.entry, finding.evidence, finding.fix)

    `verdict` is "pass", "fail", "not decidable" or "not applicable".
    """

    entry: str
    verdict: str
    cause: str = ""
    evidence: Mapping[str, Any] = field(default_factory=dict)
    fix: str = ""
    needs: str = ""


Ranks = list[Seen]  # by a probe that runs in all ranks
Evidence = Mapping[str, Result]
Findings = Finding | list[Finding]


# A check says nothing of its entry: `judge` adds it.
def inapplicable(cause: str, needs: str = "") -> Finding:
    return Finding("", "not applicable", cause, needs=needs)


def passed(cause: str, evidence: Seen | None = None) -> Finding:
    return Finding("", "pass", cause, evidence or {})


def undecided(cause: str, needs: str, evidence: Seen | None = None, fix: str = "") -> Finding:
    return Finding("", "not decidable", cause, evidence or {}, fix, needs)


def failed(cause: str, evidence: Seen | None = None, fix: str = "") -> Finding:
    return Finding("", "fail", cause, evidence or {}, fix)


@dataclass(frozen=True)
class Check:
    entry: str
    probes: tuple[str, ...]
    function: Callable[..., Findings]


CHECKS: list[Check] = []


def check(entry: str, *probes: str) -> Callable:
    """Register a check of an entry, which is called with what these probes saw if all ended well:
    as its parameters' types; a list has what each rank saw, all else is rank 0's. A check without
    probes is called with all results."""

    def register(function: Callable[..., Findings]) -> Callable:
        CHECKS.append(Check(entry, probes, function))
        return function

    return register


def load(only: Iterable[str] = ()) -> list[Check]:
    """All checks, or those of the entries named."""
    for name in MODULES:
        importlib.import_module(f"millrace.audit.checks.{name}")
    names = set(only)
    return [check for check in CHECKS if not names or check.entry in names]


def judge(evidence: Evidence, checks: list[Check]) -> list[Finding]:
    """All findings; a check whose probe did not end well is not decidable, and says why.

    So is a check that raises: its fault takes no other finding away, and is none of the loader.
    """
    findings: list[Finding] = []
    for check in checks:
        try:
            found = _found(evidence, check)
            found = [found] if isinstance(found, Finding) else list(found)
        except Exception as error:
            *_, place = traceback.extract_tb(error.__traceback__)
            cause = f"the check raised {error!r} in {Path(place.filename).name}:{place.lineno}"
            found = [undecided(cause, "a mend of the audit: report this line")]
        findings += [replace(finding, entry=finding.entry or check.entry) for finding in found]
    return findings


def _found(evidence: Evidence, check: Check) -> Findings:
    if not check.probes:
        return check.function(evidence)
    seen: list[Any] = []
    wanted = list(types_of(check.function).values())
    for name, kind in zip(check.probes, wanted, strict=False):
        result = evidence[name]
        if result.status != "ok":
            cause = f"the probe {name} {result.status}: {result.error.get('text', '')}"
            needs = LONGER if result.status == "late" else ""
            return undecided(cause.strip(": "), needs, {"error": dict(result.error)})
        of_all = result.data if get_origin(kind) is list else result.data[0]
        if of_all is None:
            return inapplicable(NO_LOADER)
        seen.append(parse(kind, of_all))
    return check.function(*seen)
