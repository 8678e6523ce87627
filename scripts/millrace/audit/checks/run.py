"""An audit from beginning to end: the probes that the checks need, then the checks."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack

from millrace.audit.checks import registry
from millrace.audit.checks.registry import Finding
from millrace.audit.runner.guard import Guard
from millrace.audit.runner.registry import Result
from millrace.audit.runner.target import Options


def audit(
    options: Options, only: Iterable[str] = (), guard: Guard | None = None
) -> tuple[dict[str, Result], list[Finding]]:
    """Run the loader and judge it; `only`: entries; `guard`: one that is open, for many audits in a row."""
    checks = registry.load(only)
    needed = {"look", *(name for each in checks for name in each.probes)}
    with ExitStack() as stack:
        results = (guard or stack.enter_context(Guard())).audit(options, sorted(needed))
    return results, registry.judge(results, checks)
