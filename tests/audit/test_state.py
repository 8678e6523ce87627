"""Every way of keeping a loader's position is found, and a position that is wrong is a fail."""

from __future__ import annotations

from importlib import util
from pathlib import Path

import pytest

from tests.audit import plain, states
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


@pytest.mark.parametrize("loader", [f"{Path(states.__file__)}:Stateless", f"{plain.here}:Module"])
def test_a_module_whose_state_is_empty_or_not_there_has_none(guard, loader):
    _, [finding] = run(guard, ["--loader", loader, "--only", "resume", "--ranks", "1"])
    assert finding.verdict == "not applicable"
