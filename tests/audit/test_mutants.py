"""Every planted bug is caught and no twin is blamed; nor is a correct loader that was drawn."""

from __future__ import annotations

import subprocess
from collections import Counter
from pathlib import Path

import pytest

from tests.audit import grammar
from tests.audit.mutants import FAMILIES, Case, family, files
from tests.audit.running import audits

WORLDS = sorted({(name, case.within) for name in FAMILIES for case in family(name)})


def first_two(cases: list[Case]) -> list[Case]:
    """Two bugs and two twins of each entry; `python -m tests.bench.bench_audit --mutants` runs
    all."""
    seen: Counter = Counter()
    return [case for case in cases if seen.update([case.sort]) or seen[case.sort] <= 2]


@pytest.mark.parametrize(("name", "within"), WORLDS)
def test_planted_bugs_fail_and_their_twins_do_not(name: str, within: str, tmp_path: Path):
    if within == "shm" and subprocess.run(["unshare", "--mount", "true"], check=False).returncode:
        pytest.skip("a /dev/shm of another size needs a mount namespace")
    files.write(tmp_path / "files")
    cases = {case.name: case for case in first_two(family(name)) if case.within == within}
    jobs = {
        name: [
            *case.argv(str(tmp_path / "files")),
            "--start-method",
            case.methods[0],
            "--only",
            case.entry,
        ]
        for name, case in cases.items()
    }
    results = audits(jobs, within)
    wrong = {name: cases[name].judge(result) for name, result in results.items()}
    assert not any(wrong.values()), wrong


@pytest.mark.parametrize(
    "entry", [*(pytest.param(each, marks=pytest.mark.slow) for each in ("", "DP7")), "DP2"]
)
def test_drawn_loaders_are_judged_by_their_bug(entry: str, tmp_path: Path):
    grammar.write(tmp_path)
    results = audits({str(seed): grammar.options(seed, entry, str(tmp_path)) for seed in range(2)})
    fails = [
        {name: said for name, said in result["entries"].items() if said["verdict"] == "fail"}
        for result in results.values()
    ]
    assert [set(each) for each in fails] == [{entry} - {""}] * len(fails), fails
