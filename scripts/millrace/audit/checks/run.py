"""An audit from beginning to end: the probes that the checks need, then the checks."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack

from millrace.audit.checks import entries
from millrace.audit.checks.findings import Finding, judge, load
from millrace.audit.runner.guard import Guard
from millrace.audit.runner.probes import Result
from millrace.audit.runner.target import Options, WrongName, checked


def audit(
    options: Options, only: Iterable[str] = (), guard: Guard | None = None
) -> tuple[dict[str, Result], list[Finding]]:
    """Run the loader and judge it; `only`: entries; `guard`: one that is open, for many audits in a
    row.

    Raises MillraceError if a name leads nowhere, or torch cannot be imported: nothing is said of
    the loader; and for an option or an entry that there is not.
    """
    options = checked(options)
    checks = load(entries.names(only))
    needed = {"look"}
    for check in checks:
        needed.update(check.probes)
    with ExitStack() as stack:
        running = guard or stack.enter_context(Guard())
        results = running.audit(options, sorted(needed))

    error = results["look"].error
    if error.get("type") == WrongName.__name__:
        raise WrongName(error["text"])
    return results, judge(results, checks)
