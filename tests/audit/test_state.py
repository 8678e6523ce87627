"""Every way of keeping a loader's position is found, and a position that is wrong is a fail."""

from __future__ import annotations

from importlib import util
from pathlib import Path

import pytest

from tests.audit import states
from tests.audit.running import run

needs_grain = pytest.mark.skipif(util.find_spec("grain") is None, reason="grain is not installed")


@pytest.mark.parametrize(
    ("loader", "how"),
    [
        ("Energon", "restore_state_rank"),
        ("Grain", "iterator"),
        ("Module", "module"),
        pytest.param("grain", "iterator", marks=needs_grain),
    ],
)
@pytest.mark.parametrize(("lost", "verdict"), [(0, "pass"), (1, "fail")])
def test_a_restart_is_judged_by_the_way_that_the_library_has(guard, loader, how, lost, verdict):
    argv = ["--loader", f"{Path(states.__file__)}:{loader}", "--arg", f"lost={lost}"]
    _, findings = run(guard, [*argv, "--only", "resume", "--ranks", "1"])
    assert findings[0].verdict == verdict, findings
    assert f"by {how}" in findings[0].cause


def test_a_module_whose_state_is_empty_has_none(guard):
    argv = ["--loader", f"{Path(states.__file__)}:Stateless", "--only", "resume", "--ranks", "1"]
    _, [finding] = run(guard, argv)
    assert finding.verdict == "not applicable"
