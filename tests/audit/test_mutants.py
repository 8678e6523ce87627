"""Every planted bug is caught and no twin is blamed."""

from __future__ import annotations

import subprocess

import pytest

from millrace.audit.runner.guard import Guard
from tests.audit.mutants import PICKLED, Case, files, table
from tests.audit.running import audited, audits
from tests.workflow.workflow import ROOT

CASES = [case for case in table().values() if not case.within]
# Of DP6, what is found before a worker is spawned, which would start torch anew.
UNSENT = ("a lambda as transform", "a lambda where workers are forked")
ORDERLY = ("DP1", "DP2", "DP3", "DP14", "resume", "end")


def first(fails: bool) -> dict[str, Case]:
    """The first bug, or the first twin, of each entry."""
    cases = [case for case in CASES if case.fails == fails and case.entry not in ("DP6", "end")]
    return {case.entry: case for case in reversed(cases)}


QUICK = {*first(True).values(), *first(False).values()}
QUICK |= {case for case in CASES if case.name in UNSENT}


def marked(case: Case) -> object:
    marks = () if case in QUICK else (pytest.mark.long,)
    return pytest.param(case, id=f"{case.entry} {case.name}", marks=marks)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> str:
    written = tmp_path_factory.mktemp("mutants") / "files"
    files.write(written)
    return str(written)


def options(case: Case, folder: str) -> list[str]:
    """A quick case is judged by its entry alone, as one that spawns; others by related ones too."""
    alone = case in QUICK or case.methods == PICKLED or case.name == "no end"
    only = case.entry if alone or case.entry not in ORDERLY else ",".join(ORDERLY)
    # What is sent to workers shows under spawn; without a method fork is compared with it.
    method = case.methods[0]
    if case.entry == "DP6" and "spawn" in case.methods:
        method = "spawn"
    return [*case.argv(folder), "--start-method", method, "--only", only]


@pytest.mark.parametrize("case", [marked(case) for case in CASES])
def test_a_planted_bug_fails_and_its_twin_does_not(case: Case, guard: Guard, folder: str):
    assert not case.judge(audited(guard, [*options(case, folder), "--timeout", "240"]))


def test_the_bench_says_how_many_loaders_there_are():
    fails = [case.fails for case in table().values()]
    counts = f"{fails.count(True)} bugs and {fails.count(False)} twins in all"
    assert counts in (ROOT / "docs/audit/bench.md").read_text()


@pytest.mark.parametrize("within", ["files", pytest.param("shm", marks=pytest.mark.long)])
def test_what_a_smaller_machine_lacks_is_foretold(within: str, folder: str):
    if within == "shm" and subprocess.run(["unshare", "--mount", "true"], check=False).returncode:
        pytest.skip("a /dev/shm of another size needs a mount namespace")
    cases = {case.name: case for case in table().values() if case.within == within}
    jobs = {name: options(case, folder) for name, case in cases.items()}
    wrong = [cases[name].judge(result) for name, result in audits(jobs, within).items()]
    assert not any(wrong), wrong
