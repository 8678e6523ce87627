"""The audit in a test of your own: `assert_loader_ok(make_loader, ranks=2)`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from millrace.audit.checks import entries
from millrace.audit.checks.run import audit
from millrace.audit.report import document, gate, terminal
from millrace.audit.runner.target import Options
from millrace.common.errors import MillraceError


def assert_loader_ok(
    loader: str | Callable[..., Any],
    ranks: int = 1,
    *,
    only: Iterable[str] = (),
    ignore: Mapping[str, str] | None = None,
    strict: bool = False,
    **options: Any,
) -> None:
    """Run a loader and raise AssertionError with the report if an entry of the catalogue fails, or
    the loader gives no batch.

        from millrace.audit.testing import assert_loader_ok
        from train import make_loader

        def test_the_loader_has_no_silent_bug():
            assert_loader_ok(make_loader, ranks=2, ignore={"DP9": "the cache fits"})

    Args:
        loader: a function of a module that makes the loader, or its name: file.py:function.
        ranks: processes that train with it.
        only: entries of the catalogue; without it, all.
        ignore: entries that do not count, and why.
        strict: what is not decidable counts as a fail.
        options: those of the command, such as `args={"limit": 500}`, `workers=2`, `timeout=60`.

    Raises MillraceError if processes of the audit's own cannot find the function.
    """
    __tracebackhide__ = True
    name = loader if isinstance(loader, str) else _name(loader)
    chosen = Options(name, ranks=ranks, **options)
    only = entries.names(only)
    if not isinstance(ignore, Mapping | None):
        remedy = 'Give entries with reasons: {"DP9": "the cache fits"}'
        raise MillraceError(f"ignore is {ignore!r}", remedy=remedy)
    reasons = gate.reasons((ignore or {}).items())
    probes, findings = audit(chosen, only)

    command = f"assert_loader_ok({name!r}, ranks={ranks})"
    run = document.Run(name, command, chosen.timeout, probes, only, reasons)
    report = document.document(findings, run)
    if document.exit_code(report, strict):
        raise AssertionError(terminal.text(report))


def _name(loader: Callable[..., Any]) -> str:
    """How processes of the audit's own find the function: they import its module again."""
    name = getattr(loader, "__qualname__", type(loader).__qualname__)
    module = sys.modules.get(getattr(loader, "__module__", ""))
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
    if module is None or found is not loader:
        remedy = "Give a function that stands in a module by its name, or 'file.py:function'"
        raise MillraceError("is no function that another process can import", name, remedy)
    # What is in no package is found by its file, wherever pytest was started.
    if "." in module.__name__ or module.__file__ is None:
        return f"{module.__name__}:{name}"
    return f"{os.path.relpath(module.__file__)}:{name}"
