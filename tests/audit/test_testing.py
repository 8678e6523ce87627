"""assert_loader_ok in somebody's own tests, by pytest as they start it."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
from types import SimpleNamespace

import numpy as np
import pytest

from millrace import audit
from millrace.audit import testing
from millrace.audit.checks import run
from millrace.audit.checks.findings import Finding
from millrace.audit.runner.probes import Result
from millrace.audit.runner.target import Options
from millrace.audit.testing import assert_loader_ok
from tests.audit import plain
from tests.refusals import refused
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


def test_what_is_asked_for_is_audited_and_judged(tmp_path, monkeypatch):
    asked = []
    look = Result("ok", [{}], {}, 0.1)

    def audited(options: Options, only: list[str]) -> tuple[dict, list[Finding]]:
        asked.append((options, only))
        return {"look": look}, [Finding("DP2", "not decidable", "no id")]

    monkeypatch.setattr(testing, "audit", audited)
    assert_loader_ok(plain.good, ranks=4, only=["dp2"], timeout=9)
    assert asked == [(Options("tests.audit.plain:good", ranks=4, timeout=9), ["DP2"])]
    with pytest.raises(AssertionError, match="no id"):
        assert_loader_ok(plain.good, only=["DP2"], strict=True)
    assert_loader_ok(plain.good, only=["DP2"], strict=True, ignore={"dp2": "why"})
    look = Result("hung", [{}], {}, 0.1)
    with pytest.raises(AssertionError):
        assert_loader_ok(plain.good, only=["DP2"], ignore={"dp2": "why"})

    # What lies in no package is named by its file.
    look = Result("ok", [{}], {}, 0.1)
    (tmp_path / "lonely.py").write_text("def make(): ...")
    monkeypatch.syspath_prepend(tmp_path)
    assert_loader_ok(importlib.import_module("lonely").make)
    assert asked[-1][0].loader == f"{os.path.relpath(tmp_path / 'lonely.py')}:make"


@pytest.mark.parametrize(
    "options, words",
    [
        ({"ranks": "2"}, r"ranks is '2'\. Give a whole number from 1"),
        ({"ranks": 0}, "ranks is 0"),
        ({"workers": -1}, "workers is -1"),
        ({"epochs": 0}, "epochs is 0"),
        ({"memory_mb": "x"}, "memory_mb is 'x'"),
        ({"memory_mb": -1}, "memory_mb is -1"),
        ({"timeout": "30"}, r"timeout is '30'\. Give a number above 0"),
        ({"start_method": "x"}, r"start_method is 'x'\. Give fork"),
        ({"expect": "0.5"}, r"expect is '0.5'\. Give 0-1"),
        ({"expect": 0.5}, r"expect is 0.5\. Give 0-1"),
        ({"model": len}, "model is <built-in"),
        ({"val_loader": len}, "val_loader is <built-in"),
        ({"loop": len}, r"loop is <built-in .*\. Name it: 'train.py:loop'"),
        ({"args": "limit=3"}, r"args is 'limit=3'\. Give a dict"),
        ({"only": "DP9"}, r"only is 'DP9'\. Give a list"),
        ({"only": ["DP51"]}, r"'DP51'.*Entries: DP1, "),
        ({"ignore": ["DP9"]}, r"ignore is \['DP9'\]\. Give entries with reasons"),
    ],
)
def test_an_option_that_would_break_probes_is_refused(options, words):
    with refused(words):
        assert_loader_ok(plain.good, **options)


@pytest.mark.parametrize("loader", [lambda: plain.good(), plain.Squares().__getitem__])
def test_a_function_that_no_other_process_can_import_is_refused(loader):
    with refused("is no function that another process can import"):
        assert_loader_ok(loader)
    with refused(r"loader is <.*\. Name it: 'train.py:loader'"):
        audit.check(loader)
    with refused(r"only is 'DP9'\. Give a list"):
        audit.check("tests.audit.plain:good", only="DP9")


def test_the_audit_is_asked_for_numbers_as_json_holds_them():
    asked = []

    def audited(options: Options, probes: list[str]) -> dict[str, Result]:
        asked.append(options)
        return {name: Result("ok", [{}], {}, 0.1) for name in probes}

    numbers = {"ranks": np.int64(2), "memory_mb": np.int64(0), "timeout": np.float32(9)}
    options = Options("numpy.own:loader", start_method="forkserver", **numbers)
    with contextlib.suppress(KeyError):  # nothing was seen
        run.audit(options, ["DP2"], SimpleNamespace(audit=audited))
    assert json.loads(json.dumps(vars(asked[0])))["timeout"] == 9
    assert asked[0].workers is None
