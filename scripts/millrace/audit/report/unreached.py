"""What an audit did not reach before its time was over, and how long it needs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from millrace.audit.checks.findings import LONGER
from millrace.audit.runner.probes import PROBES, Result

Results = Mapping[str, Result]


def found(entries: Iterable[dict], results: Results, timeout: float) -> dict | None:
    """The entries of a report that more time would decide, and the time; None if there are none."""
    names = [entry["name"] for entry in entries if _is_late(entry)]
    if not names:
        return None
    return {"entries": names, "timeout": timeout, "needed": _seconds(results, timeout)}


def _is_late(entry: dict) -> bool:
    verdict = entry["findings"][0]["verdict"]  # the worst is the first
    needs = [row["needs"] for row in entry["findings"] if row["verdict"] == verdict]
    return verdict == "not decidable" and any(need.startswith(LONGER) for need in needs)


def _seconds(results: Results, timeout: float) -> int:
    """A --timeout that is enough, going by how long the probes took that have ended here.

    A probe that was cut off needs at least twice of what it had.
    """
    ended = [name for name, result in results.items() if result.status == "ok"]
    usual = sum(PROBES[name].seconds for name in ended)
    taken = sum(results[name].seconds for name in ended)
    slowness = max(1.0, taken / usual) if ended else 1.0

    total = 0.0
    each = []  # what all may take, so that a late probe has its time
    for name, result in results.items():
        whole = result.seconds
        if result.status == "late":
            whole = max(2 * whole, slowness * PROBES[name].seconds)
            each.append(whole / PROBES[name].share)
        total += whole
    most = max(each, default=2 * timeout)
    return 10 * math.ceil(max(total, most) / 10)
