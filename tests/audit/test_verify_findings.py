"""Which findings keep a run from starting, what is said of them, and where an ignored one
stands."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from millrace.audit import status, verify_findings
from millrace.audit.checks.findings import Finding
from millrace.audit.report.document import Run, document
from millrace.audit.runner.probes import Result
from millrace.common import atomic

FAIL = Finding(
    "DP2", "fail", "ranks read the same 64 samples", {"ids": [3, 4]}, "use DistributedSampler"
)


def verify(folder: Path, findings: list[Finding], *flags: str, look: Result | None = None) -> int:
    """The exit code, where the findings are those of an audit."""
    probes = {"look": look or Result("ok", [{}], {}, 0.1)}
    report = document(findings, Run("a:b", "", 60, probes, [], {}))
    (folder / "findings.json").write_text(json.dumps(report))
    outputs = ["--page", str(folder / "findings.html"), "--accepted", str(folder / "accepted.json")]
    return verify_findings.main(["--findings", str(folder / "findings.json"), *outputs, *flags])


@pytest.mark.parametrize(
    "findings, flags, code, words",
    [
        ([], [], 0, ""),
        ([Finding("DP2", "not decidable", "no index")], [], 0, ""),
        ([FAIL], [], 1, "(Samples come once per worker or once per rank): ranks read the same 64"),
        (
            [FAIL],
            [],
            1,
            "not start. Fix: use DistributedSampler. If it is meant so, set audit.ignore: {DP2:",
        ),
        (
            [FAIL, Finding("DP9", "fail", "grows")],
            ["--refuse=DP2,DP9"],
            1,
            "64 samples; so do DP9. Training",
        ),
        ([FAIL], ["--refuse=DP9"], 0, ""),
        ([Finding("DP1", "fail", "alike")], ["--refuse=DP10,DP2"], 0, ""),
        (
            [Finding("DP1", "fail", "alike"), FAIL, Finding("DP2", "fail", "later", fix="y")],
            ["--refuse=DP2"],
            1,
            "DP2 fails (Samples come once per worker or once per rank): ranks read the same 64",
        ),
        ([FAIL], ["--refuse=none"], 0, ""),
        ([FAIL], ["--ignore=DP2=the test = set"], 0, ""),
        ([FAIL], ["--ignore=DP3=another one"], 1, "DP2 fails"),
    ],
)
def test_a_run_starts_unless_an_entry_fails_that_is_refused(
    tmp_path, capsys, findings, flags, code, words
):
    assert verify(tmp_path, findings, *flags) == code
    assert words in capsys.readouterr().err
    files = {path.name for path in tmp_path.iterdir()} - {"findings.json"}
    assert files == ({"refused.html"} if code else {"findings.html", "accepted.json"})
    # What is accepted is shown too.
    shown = (tmp_path / min(files - {"accepted.json"})).read_text()
    assert all(finding.cause in shown for finding in findings)


def test_an_ignored_fail_stands_on_the_page_with_its_reason(tmp_path):
    assert verify(tmp_path, [FAIL], "--ignore=DP2=the test set is tiny") == 0
    page, accepted = (tmp_path / name for name in ("findings.html", "accepted.json"))
    assert (
        "the test set is tiny" in page.read_text()
        and "ranks read the same 64 samples" in page.read_text()
    )
    choices = json.loads(accepted.read_text())
    counts = choices.pop("counts")
    assert (counts["ignored"], counts["fail"]) == (1, 0)
    assert choices == {"refuse": "all", "ignore": {"DP2": "the test set is tiny"}}
    assert verify(tmp_path, [FAIL], "--refuse=DP9") == 0
    assert json.loads(accepted.read_text())["refuse"] == "DP9"


@pytest.mark.parametrize(
    "status, text",
    [
        ("raised", "KeyError: 'x'"),
        ("hung", "no end after 30 s"),
        ("died", "rank 0 ended with SIGKILL"),
        ("memory", "its processes hold 9.0 GiB, more than 8.0 GiB"),
        ("late", "not done after 30 s"),
    ],
)
def test_a_loader_that_gave_no_batch_does_not_start(tmp_path, capsys, status, text):
    look = Result(status, [{}], {"text": text}, 0.1)
    assert verify(tmp_path, [], "--refuse=DP2", look=look) == 1
    assert f"the loader {status}: {text}. Training does not start" in capsys.readouterr().err
    assert verify(tmp_path, [], "--refuse=none", look=look) == 0


def test_the_status_tells_the_verdicts_on_each_loader_and_its_jobs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    paths = [f"results/audit/asr/{run}/accepted.json" for run in "ab"]
    for path, counts in zip(paths, ({"fail": 0, "pass": 3, "ignored": 1}, {}), strict=True):
        atomic.write_json(path, {"counts": counts})
    told = ["loader of asr a: 1 ignored, 3 pass", "loader of asr b: not audited"]
    assert status.facts() == dict(zip(paths, told, strict=True))

    log = tmp_path / "logs/audit/check_loader/asr/a.log"
    log.parent.mkdir(parents=True)
    log.touch()
    check, verify = status.steps()
    assert check == ("check_loader", "results/audit/{}/findings.json", {"asr/a": []})
    assert verify == ("verify_findings", "results/audit/{}/accepted.json", {})
