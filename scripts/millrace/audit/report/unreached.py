"""What an audit did not reach before its time was over, and how long it needs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from millrace.audit.checks.findings import LONGER
from millrace.audit.runner.probes import PROBES, Result


def names(entries: Iterable[dict]) -> list[str]:
    """The entries of a report that more time would decide."""
    late = []
    for entry in entries:
        needs = [row["needs"] for row in entry["findings"] if row["verdict"] == "not decidable"]
        is_open = entry["findings"][0]["verdict"] == "not decidable"  # the worst is the first
        if is_open and any(need.startswith(LONGER) for need in needs):
            late.append(entry["name"])
    return late


def seconds(results: Mapping[str, Result], timeout: float) -> int:
    """A --timeout that is enough, going by how long the probes took that have ended here.

    A probe that was cut off needs at least twice of what it had.
    """
    ended = [name for name, result in results.items() if result.status == "ok"]
    usual = sum(PROBES[name].seconds for name in ended)
    taken = sum(results[name].seconds for name in ended)
    slowness = max(1.0, taken / usual) if ended else 1.0

    total, most = 0.0, 2 * timeout
    late = [name for name, result in results.items() if result.status == "late"]
    if late:
        most = 0.0
    for name, result in results.items():
        whole = result.seconds
        if name in late:
            whole = max(2 * result.seconds, slowness * PROBES[name].seconds)
            most = max(most, whole / PROBES[name].share)
        total += whole
    return 10 * math.ceil(max(total, most) / 10)
