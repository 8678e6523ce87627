"""The audit: runs anybody's data loader for a minute and names its silent bugs and their fix."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from millrace.audit.checks.findings import Finding


def check(loader: str, only: Iterable[str] = (), **options: Any) -> list[Finding]:
    """Run a loader and judge it, as `python -m millrace.audit.check_loader` does.

        from millrace import audit

        for finding in audit.check("train.py:make_loader", only=["DP2", "DP14"]):
            print(finding.entry, finding.verdict, finding.cause, finding.fix)

    Args:
        loader: module:factory or file.py:factory: a DataLoader, or what makes it or gives batches.
        only: entries of the catalogue; without it, all.
        options: those of the command, such as `ranks=2`, `workers=2`, `epochs=2`, `timeout=60`.

    Raises MillraceError if the name leads to no loader.
    """
    from millrace.audit.checks.run import audit
    from millrace.audit.runner.target import Options

    return audit(Options(loader, **options), only)[1]
