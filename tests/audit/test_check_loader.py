"""The command: what it prints and writes, and its exit codes."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import venv
from collections.abc import Callable
from functools import partial
from pathlib import Path

import jsonschema
import pytest

from millrace.audit import check_loader
from millrace.audit.checks.findings import LONGER, Finding
from millrace.audit.checks.run import audit
from millrace.audit.runner.probes import Result
from millrace.audit.runner.target import Options
from tests.audit import plain
from tests.audit.test_alone import SCHEMA
from tests.workflow.workflow import ROOT


@pytest.fixture
def check(guard, monkeypatch, tmp_path) -> Callable[[str, str], int]:
    """The command on a loader of `plain`, in an empty folder, with a guard that is open already."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(check_loader, "audit", partial(audit, guard=guard))

    def run(name: str, flags: str) -> int:
        return check_loader.main(["--loader", f"{plain.here}:{name}", *shlex.split(flags)])

    return run


@pytest.mark.parametrize(
    "given, code, text, fails",
    [
        ("good", 0, "PASS", 0),
        ("repeated", 1, "FAIL  DP7", 1),
        ("repeated --exit-zero", 0, "FAIL  DP7", 1),
        ("repeated --ignore 'dp7=it is meant so'", 0, "it is meant so", 0),
        ("plain_list --only DP2", 0, "PASS            DP2", 0),
        ("unloadable", 2, "batch_size should be a positive integer", 1),
        ("asleep --timeout 16", 3, "__getitem__", 1),
    ],
)
def test_exit_codes(check, capsys, given, code, text, fails):
    name, _, flags = given.partition(" ")
    outputs = "--json found.json --sarif found.sarif"
    assert check(name, f"--only DP7,end --ranks 1 {outputs} {flags}") == code
    assert text in capsys.readouterr().out
    jsonschema.validate(json.loads(Path("found.json").read_text()), SCHEMA)
    [run] = json.loads(Path("found.sarif").read_text())["runs"]
    assert len(run["results"]) == fails


@pytest.mark.parametrize("flag", ["--loader", "--val-loader", "--model", "--loop"])
def test_a_misspelt_name_is_one_line_and_no_finding(check, capsys, tmp_path, flag):
    absent = f"{flag} {plain.here}:absent"
    assert check("good", f"{absent} --json json --only DP7,end --ranks 1 --exit-zero") == 2
    printed = capsys.readouterr()
    assert (
        printed.out == ""
        and len(printed.err.splitlines()) == 1
        and "plain has no absent" in printed.err
    )
    assert list(tmp_path.iterdir()) == []


def test_without_torch_the_audit_is_one_line_and_no_finding(tmp_path):
    venv.create(tmp_path, with_pip=False, symlinks=True)
    command = [
        tmp_path / "bin/python",
        "-m",
        "millrace.audit.check_loader",
        "--loader",
        f"{plain.here}:good",
    ]
    environment = {"PYTHONPATH": f"{ROOT}/scripts"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert (
        "torch cannot be imported: No module named 'torch'. Start the audit with the Python" in line
    )


def test_ranks_that_are_alike_are_a_bug_if_they_train_together(check, capsys):
    flags = ("", "--strict", "--ranks 2")
    codes = [check("good", f"--only DP2 --workers 0 {more}") for more in flags]
    assert codes == [0, 1, 1]
    printed = " ".join(capsys.readouterr().out.split())
    assert "--ranks 2 if several processes train with this loader" in printed


@pytest.mark.parametrize("name", ["plain_list", "Infinite"])
def test_what_cannot_be_listened_to_is_judged_by_its_batches(check, name):
    assert check(name, "--only DP1,DP2,DP3,DP4,DP14,end --ranks 1") == 0


@pytest.mark.long
def test_a_time_that_was_too_short_names_longer_ones_until_one_is_enough(check, capsys, tmp_path):
    timeout = 3
    while True:
        assert check("good", f"--ranks 1 --json json --timeout {timeout}") == 0
        unreached = json.loads((tmp_path / "json").read_text())["unreached"]
        if unreached is None:
            break
        assert unreached["entries"]
        said = " ".join(capsys.readouterr().out.split())  # lines are wrapped
        assert f"--timeout {unreached['needed']}" in said
        assert unreached["needed"] > timeout
        timeout = unreached["needed"]
    assert timeout > 3


def test_what_is_asked_for_is_audited_and_reported(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    asked = []

    def audited(options: Options, only: list[str]) -> tuple[dict, list[Finding]]:
        asked.append((only, sys.path[0]))
        late = Finding("DP6", "not decidable", "it took long", needs=LONGER)
        return {"look": Result("ok", [{}], {}, 0.1)}, [late, Finding("DP2", "pass")]

    monkeypatch.setattr(check_loader, "audit", audited)
    flags = "--only dp6 --timeout 8 --json found.json"
    assert check_loader.main(["--loader", "train:make", *flags.split()]) == 0
    assert asked == [(["DP6"], str(tmp_path))]
    report = json.loads(Path("found.json").read_text())
    assert [entry["name"] for entry in report["entries"]] == ["DP6"]
    assert report["unreached"]["timeout"] == 8


def test_a_figure_that_is_no_number_is_null_in_json(check, monkeypatch):
    report = {"loss": float("nan")}
    monkeypatch.setattr(check_loader.document, "document", lambda *_: report)
    monkeypatch.setattr(check_loader.terminal, "text", str)
    assert check("good", "--only DP4 --ranks 1 --exit-zero --json json") == 0
    assert json.loads(Path("json").read_text()) == {"loss": None}


@pytest.mark.parametrize(
    "flags",
    ["--ignore DP9", "--ignore 'DP9= '", "--only DP99", "--arg length", "--expect 3", "--ranks 0"],
)
def test_a_wrong_flag_is_no_bug_of_the_loader(check, flags):
    try:
        code = check("good", flags)
    except SystemExit as error:  # argparse's
        code = error.code
    assert code == 2
