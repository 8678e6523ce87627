"""assert_loader_ok in somebody's own tests, by pytest as they start it."""

from __future__ import annotations

import pytest

from millrace.audit.testing import assert_loader_ok
from millrace.common.errors import MillraceError
from tests.audit import plain
from tests.workflow.workflow import ROOT

pytest_plugins = ["pytester"]

TRAIN = """
import torch
from torch.utils.data import DataLoader, Dataset

class Rows(Dataset):
    def __init__(self, wraps):
        self.wraps = wraps

    def __len__(self):
        return 12

    def __getitem__(self, index):
        if index >= 12 and not self.wraps:
            raise IndexError(index)
        return torch.tensor([float(index % 12)])

def good(limit=12):
    return DataLoader(Rows(wraps=False), batch_size=4)

def bad():
    return DataLoader(Rows(wraps=True), batch_size=4)
"""
TESTS = """
from millrace.audit.testing import assert_loader_ok
from train import bad, good

def test_good():
    assert_loader_ok(good, only=["DP7", "DP12"], ignore={"dp12": "floats"}, args={"limit": 3})

def test_bad():
    assert_loader_ok(bad, only=["DP7"])
"""


@pytest.mark.long
def test_a_good_loader_passes_and_a_bad_one_fails_with_entry_cause_and_fix(pytester, monkeypatch):
    (pytester.mkdir("source") / "train.py").write_text(TRAIN)
    pytester.makepyfile(test_loader=TESTS)
    pytester.makepyprojecttoml('[tool.pytest.ini_options]\npythonpath = ["source"]\n')
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}/scripts")
    ran = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    ran.assert_outcomes(passed=1, failed=1)
    ran.stdout.fnmatch_lines(
        [
            "*AssertionError: Audit of *train.py:bad (python: *",
            "E * FAIL  DP7 *__len__ and __getitem__ disagree",
            "E *  cause  *",
            "E *  fix  *",
        ]
    )
    said = ran.stdout.str()
    assert "testing.py" not in said  # the traceback ends in the user's own test


@pytest.mark.parametrize("loader", [lambda: plain.good(), plain.Squares().__getitem__])
def test_a_function_that_no_other_process_can_import_is_refused(loader):
    with pytest.raises(MillraceError, match="is no function that another process can import"):
        assert_loader_ok(loader)
