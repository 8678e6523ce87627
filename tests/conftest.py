"""What all tests share: the order of a run, Debian's programs, settings of Hypothesis."""

from __future__ import annotations

import functools
import logging
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

# Threads of several torches that wait for each other must not do so on processors that others could
# use.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# No deadline: machines are slow and shared, and a test must not fail for that.
# Derandomised, so that a commit passes or fails for good; `make fuzz` draws new examples.
settings.register_profile("same", deadline=None, derandomize=True, database=None, print_blob=True)
settings.register_profile("fuzz", deadline=None, max_examples=1000, print_blob=True)
settings.load_profile("fuzz" if os.environ.get("MILLRACE_FUZZ") else "same")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Slurm's tests, which mostly wait, and other groups come first: each keeps one worker busy for
    minutes while others run the unit tests."""

    def rank(test: pytest.Item) -> int:
        if group(test.nodeid) != test.nodeid:
            return 0 if "tests/slurm/" in test.nodeid else 1
        return 2

    items.sort(key=rank)
    if not os.environ.get("MILLRACE_FUZZ"):
        for test in items:
            if test.get_closest_marker("slow"):
                test.add_marker(pytest.mark.skip(reason="slow: make fuzz runs it"))


@functools.cache
def has_gpu() -> bool:
    """Without loading torch where the driver has made no device: each of xdist's workers would."""
    if not any(Path("/dev", name).exists() for name in ("nvidiactl", "dxg")):
        return False
    import torch

    return torch.cuda.is_available()


# Tests whose fixtures take long: made once, by one worker. Clusters would wait for each other's
# processors; the modules about the workflow's text and plans share the table of its rules and a dry
# run of everything.
TOGETHER = {
    "tests/slurm/": "tests/slurm",
    "tests/scale/test_edits.py": "tests/scale",
    "tests/audit/test_gate.py": "tests/audit/test_gate.py",
    "tests/speech/test_fetch_corpus.py": "tests/speech/test_fetch_corpus.py",
    "tests/workflow/test_asr_data.py": "tests/workflow/test_asr_data.py",
    "tests/workflow/test_bad_input.py": "tests/workflow/test_bad_input.py",
    "tests/workflow/test_crash.py": "tests/workflow/test_crash.py",
    "tests/workflow/test_end_to_end.py": "tests/workflow/test_end_to_end.py",
    "tests/workflow/test_module.py": "tests/workflow/test_module.py",
    "tests/workflow/test_pages.py": "tests/workflow/test_pages.py",
    "tests/workflow/test_partial_rebuild.py": "tests/workflow/test_partial_rebuild.py",
    "tests/workflow/test_readme.py": "tests/workflow/test_readme.py",
    "tests/workflow/": "tests/workflow",
}


def group(nodeid: str) -> str:
    """Tests that one worker runs one after the other; most are a group of one."""
    for prefix, name in TOGETHER.items():
        if nodeid.startswith(prefix):
            return name
    return nodeid


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """One group at a time to each worker.

    `--dist loadgroup` would do, but pytest 9.2 ignores the names that xdist 3.8 gives to groups.
    """
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group(nodeid)

    return Scheduling(config, log)


@pytest.fixture
def online(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading a model takes the Hub's client offline, for the rest of the process."""
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    if "huggingface_hub" in sys.modules:
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Bytes are named by their argument: encoders write the time into them, and xdist's workers
    must collect the same names (pytest numbers those that are equal)."""
    return argname if isinstance(val, bytes) else None


def pytest_runtest_setup(item: pytest.Item) -> None:
    """`@pytest.mark.debian("chromium")`: programs that only .ci/run installs, so elsewhere the test
    may be skipped. `@pytest.mark.gpu`: skipped in one line of the summary."""
    if item.get_closest_marker("gpu") and not has_gpu():
        pytest.skip("needs a CUDA device: make gpu runs it where there is one")

    # Daemons are where the PATH of ordinary users does not look.
    path = f"{os.environ.get('PATH', '')}:/usr/sbin"
    for mark in item.iter_markers("debian"):
        missing = [program for program in mark.args if shutil.which(program, path=path) is None]
        if missing and os.environ.get("MILLRACE_CI"):
            pytest.fail(
                f"not installed although MILLRACE_CI is set: {', '.join(missing)}", pytrace=False
            )
        if missing:
            pytest.skip(f"not installed: {', '.join(missing)}")


def pytest_runtest_teardown() -> None:
    """A step that a test called logs to that test's stderr, which is closed after it: neither that
    stream nor its level is for the next test."""
    root = logging.getLogger()
    root.setLevel(logging.WARNING)
    for handler in root.handlers[:]:
        if type(handler).__module__ in ("logging", "millrace.common.cli"):
            root.removeHandler(handler)
