"""Which findings keep a run from starting, and which do not count, by the user's choice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from millrace.audit.checks import entries
from millrace.common.errors import MillraceError


def with_reasons(document: dict, reasons: Mapping[str, str]) -> dict:
    """The report, where an entry that is no pass and has a reason is ignored, and all others
    count."""
    entries = []
    for entry in document["entries"]:
        verdict = entry["findings"][0]["verdict"]  # the worst is the first
        reason = reasons.get(entry["name"]) if verdict in ("fail", "not decidable") else None
        entries.append({**entry, "verdict": "ignored" if reason else verdict, "reason": reason})
    numbers = Counter(entry["verdict"] for entry in entries)
    return {
        **document,
        "entries": entries,
        "counts": {name: numbers[name] for name in document["counts"]},
    }


def check(document: dict, refuse: str, place: str) -> None:
    """Raise MillraceError if an entry fails that `refuse` names (all, none, or names with commas),
    or if the loader gave no batch."""
    look = next(probe for probe in document["probes"] if probe["name"] == "look")
    if look["status"] != "ok" and refuse != "none":
        problem = f"the loader {look['status']}: {look['error']}. Training does not start"
        raise MillraceError(problem, place, "Mend that, or set audit.refuse: none")
    names = refuse.split(",")
    fails = [entry for entry in document["entries"] if entry["verdict"] == "fail"]
    if fails := [entry for entry in fails if refuse == "all" or entry["name"] in names]:
        first, more = fails[0], [entry["name"] for entry in fails[1:]]
        row, others = first["findings"][0], f"; so do {', '.join(more)}" * bool(more)
        problem = (
            f"{first['name']} fails ({first['title']}): {row['cause']}{others}. Training does not"
            " start"
        )
        remedy = f"Fix: {row['fix']}. If it is meant so, set audit.ignore: {{{first['name']}: why}}"
        raise MillraceError(problem, place, f"{remedy}, or audit.refuse: none")


def reasons(pairs: Iterable[str] | None) -> dict[str, str]:
    """Reasons by entry, of texts such as `DP9=it is bounded by the corpus`; MillraceError if one
    has none."""
    parts = [pair.partition("=") for pair in pairs or ()]
    if bare := [entry for entry, _, reason in parts if not reason.strip()]:
        raise MillraceError(
            f"{bare[0]} is to be ignored without a reason", remedy=f"Write {bare[0]}=why"
        )
    return {entries.get(entry).name: reason for entry, _, reason in parts}
