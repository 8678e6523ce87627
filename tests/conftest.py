"""What all tests share: the order of a run, Debian's programs, settings of Hypothesis."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest
from hypothesis import settings

# Steps that tests start as processes of their own, in any folder.
os.environ["PYTHONPATH"] = os.pathsep.join(
    [str(Path(__file__).parents[1] / "scripts"), *filter(None, [os.environ.get("PYTHONPATH")])]
)

# No deadline: machines are slow and shared, and a test must not fail for that.
# Derandomised, so that a commit passes or fails for good; `make fuzz` draws new examples.
settings.register_profile("same", deadline=None, derandomize=True, database=None, print_blob=True)
settings.register_profile("fuzz", deadline=None, max_examples=1000, print_blob=True)
settings.load_profile("fuzz" if os.environ.get("MILLRACE_FUZZ") else "same")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Unit tests first, then the workflow's text and dry runs, then whole runs: cheap failures come early.

    The shipped config's run comes first of these: it takes minutes.
    """

    def rank(test: pytest.Item) -> int:
        if test.path.stem == "test_end_to_end":
            return 2
        if test.get_closest_marker("e2e"):
            return 3
        return 1 if "tests/workflow/" in test.nodeid else 0

    items.sort(key=rank)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """One test at a time to each worker, but all of the shipped config's run to one, so that it is made once.

    `--dist loadgroup` would do, but pytest 9.2 ignores the names that xdist 3.8 gives to groups.
    """
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            module = nodeid.partition("::")[0]
            return module if module.endswith("test_end_to_end.py") else nodeid

    return Scheduling(config, log)


@pytest.fixture
def online(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading a model takes the Hub's client offline, for the rest of the process."""
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    if "huggingface_hub" in sys.modules:
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Bytes are named by their argument: encoders write the time into them, and xdist's workers must collect
    the same names (pytest numbers those that are equal)."""
    return argname if isinstance(val, bytes) else None


def pytest_runtest_setup(item: pytest.Item) -> None:
    """`@pytest.mark.debian("chromium")`: programs that only .ci/run installs, so elsewhere the test may be
    skipped."""
    # Daemons are where the PATH of ordinary users does not look.
    path = f"{os.environ.get('PATH', '')}:/usr/sbin"
    for mark in item.iter_markers("debian"):
        missing = [program for program in mark.args if shutil.which(program, path=path) is None]
        if missing and os.environ.get("MILLRACE_CI"):
            pytest.fail(f"not installed although MILLRACE_CI is set: {', '.join(missing)}", pytrace=False)
        if missing:
            pytest.skip(f"not installed: {', '.join(missing)}")
