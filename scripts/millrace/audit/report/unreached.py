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
    return {
        "entries": names,
        "timeout": timeout,
        "needed": _seconds(results, timeout),
    }


def _is_late(entry: dict) -> bool:
    worst, *_ = entry["findings"]
    if worst["verdict"] != "not decidable":
        return False
    return any(finding["needs"].startswith(LONGER) for finding in entry["findings"])


def _seconds(results: Results, timeout: float) -> int:
    """A --timeout that is enough, going by how long the probes took that have ended here.

    A probe that was cut off needs at least twice of what it had.
    """
    slowness = _slowness(results)
    spent = sum(result.seconds for result in results.values())
    total = max(spent, timeout)  # to start probes takes time too
    shares = []  # a probe may use up its share of the time
    for name, result in results.items():
        if result.status != "late":
            continue
        probe = PROBES[name]
        seconds = max(2 * result.seconds, slowness * probe.seconds)
        shares.append(seconds / probe.share)
        total += seconds - result.seconds
    most = max(shares, default=2 * timeout)
    return 10 * math.ceil(max(total, most) / 10)


def _slowness(results: Results) -> float:
    """How many times as long probes took as they usually do, at least 1."""
    usual = taken = 0.0
    for name, result in results.items():
        if result.status == "ok":
            usual += PROBES[name].seconds
            taken += result.seconds
    return max(1.0, taken / usual) if usual else 1.0
