"""Which findings keep a run from starting, and which do not count, by the user's choice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from millrace.audit.checks import entries
from millrace.common.errors import MillraceError


def first_look(document: dict) -> dict:
    """How the first probe ended: whether the loader gave a batch."""
    return next(probe for probe in document["probes"] if probe["name"] == "look")


def with_reasons(document: dict, reasons: Mapping[str, str]) -> dict:
    """The report, where an entry that is no pass and has a reason is ignored, and all others
    count."""
    entries = []
    for entry in document["entries"]:
        verdict = entry["findings"][0]["verdict"]  # the worst is the first
        reason = None
        if verdict in ("fail", "not decidable"):
            reason = reasons.get(entry["name"])
        if reason:
            verdict = "ignored"
        entries.append({**entry, "verdict": verdict, "reason": reason})
    numbers = Counter(entry["verdict"] for entry in entries)
    counts = {verdict: numbers[verdict] for verdict in document["counts"]}
    return {**document, "entries": entries, "counts": counts}


def check(document: dict, refuse: str, place: str) -> None:
    """Raise MillraceError if an entry fails that `refuse` names (all, none, or names with commas),
    or if the loader gave no batch."""
    if refuse == "none":
        return
    look = first_look(document)
    if look["status"] != "ok":
        problem = f"the loader {look['status']}: {look['error']}. Training does not start"
        raise MillraceError(problem, place, "Mend that, or set audit.refuse: none")

    names = refuse.split(",")
    fails = [entry for entry in document["entries"] if entry["verdict"] == "fail"]
    refused = [entry for entry in fails if refuse == "all" or entry["name"] in names]
    if not refused:
        return
    name = refused[0]["name"]
    title = refused[0]["title"]
    worst = refused[0]["findings"][0]
    problem = f"{name} fails ({title}): {worst['cause']}"
    if len(refused) > 1:
        problem += f"; so do {', '.join(entry['name'] for entry in refused[1:])}"
    remedy = f"Fix: {worst['fix']}. If it is meant so, set audit.ignore: {{{name}: why}}"
    raise MillraceError(
        f"{problem}. Training does not start", place, f"{remedy}, or audit.refuse: none"
    )


def typed_reasons(flags: Iterable[str] | None) -> dict[str, str]:
    """Reasons by entry, of flags such as `DP9=it is bounded by the corpus`; MillraceError as
    `reasons`."""
    parts = [flag.partition("=") for flag in flags or ()]
    return reasons((name, reason) for name, _, reason in parts)


def reasons(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Reasons by entry; MillraceError if one is empty, or is of no entry."""
    found = {}
    for name, reason in pairs:
        if not reason.strip():
            problem = f"{name} is to be ignored without a reason"
            raise MillraceError(problem, remedy=f"Write {name}=why")
        found[entries.get(name).name] = reason
    return found
