"""What an audit of a lane's loader rests on."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from millrace.audit import inputs as audit_inputs
from millrace.audit.inputs import AuditInputs
from millrace.common.workflow.runs import Audited

RUN = SimpleNamespace(lane="asr", run="a")


def inputs(*on: str, refuse: object = "all", **ignore: str) -> AuditInputs:
    """The rules of the audit, over two lanes of which those in `on` are switched on."""
    arguments = {"seed": 7, "fast": True, "place": "a b", "keys": {"b": 1, "a": 2}}
    audited = Audited("task:audited", arguments, ["a.json"], ranks=8, epochs=1)
    lane = SimpleNamespace(audited=lambda run: audited, audited_runs=lambda: ["a"])
    section = {"refuse": refuse, "ignore": ignore}
    return AuditInputs(section, {"asr": lane, "music": lane}, on)


def test_two_ranks_of_a_loader_are_run_with_its_arguments_quoted():
    assert inputs().loader(RUN) == (
        "--loader task:audited --ranks 2 --epochs 1"
        " --val-loader task:audited_validation --model task:audited_model"
        """ --arg seed=7 --arg fast=true --arg 'place=a b' --arg 'keys={"a": 2, "b": 1}'"""
    )
    assert "OMP_NUM_THREADS=1" in inputs().environment(RUN)
    assert inputs().data(RUN) == ["a.json"]


@pytest.mark.parametrize(
    "changed, is_other",
    [
        ("asr/training/a.py", True),
        ("common/a/b.py", True),
        ("audit/a.py", True),
        ("music/a.py", False),
    ],
)
def test_a_loader_is_audited_again_if_code_that_it_rests_on_is_other(
    tmp_path, monkeypatch, changed, is_other
):
    monkeypatch.setattr(audit_inputs, "_PACKAGE", tmp_path)
    path = tmp_path / changed
    path.parent.mkdir(parents=True)
    environments = []
    for code in ("one", "other"):
        path.write_text(code)
        audit_inputs._digest.cache_clear()
        environments.append(inputs().environment(RUN))
    audit_inputs._digest.cache_clear()
    assert (environments[0] != environments[1]) == is_other


def test_pages_are_of_the_lanes_that_are_on_and_no_run_waits_if_nothing_is_refused():
    assert inputs("music").targets() == ["results/audit/music/a/findings.html"]
    findings = ["results/audit/asr/a/findings.json"]
    assert inputs("asr").findings(RUN) == inputs("audit", refuse="none").findings(RUN) == findings
    assert inputs("asr", refuse="none").findings(RUN) == []


def test_entries_that_are_refused_and_ignored_are_flags():
    assert inputs(refuse="none").choices() == inputs(refuse=[]).choices() == "--refuse none"
    chosen = inputs(refuse=["DP1", "end"], splits="it's wanted", DP9="b")
    assert chosen.choices() == (
        """--refuse DP1,end --ignore DP9=b --ignore 'splits=it'"'"'s wanted'"""
    )
