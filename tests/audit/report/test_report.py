"""The report: verdicts of entries, what is ignored, exit codes; on the terminal and as a page."""

from __future__ import annotations

import json
import re
from xml.etree import ElementTree

import pytest

from millrace.audit.checks.entries import ENTRIES
from millrace.audit.checks.findings import Finding
from millrace.audit.report.document import Run, document, exit_code
from millrace.audit.report.page import page
from millrace.audit.report.sarif import sarif
from millrace.audit.report.terminal import text
from millrace.audit.runner.probes import Result

LOOK = Result(
    "ok", [{"python": "3.11.2", "torch": "2.13.0", "start_method": "fork", "length": 3}], {}, 1.25
)
HUNG = Result("hung", [{}], {"text": "no end after 20 s", "where": "data.py, line 7"}, 20.0)
FINDINGS = [
    Finding("DP3", "pass", "25 steps on each rank"),
    Finding("DP2", "pass", "ranks have different samples"),
    Finding(
        "DP2",
        "fail",
        "all come twice",
        {"ids": list(range(300)), "at": [{"rank": 0}, {"rank": 1}]},
        "i % 4 == rank * 2",
    ),
    Finding(
        "DP4",
        "fail",
        "two shapes",
        {"raised": "[1] & [2] <b>\x1b[31m\x00\nnext", "path": "/" + "x" * 800, "trace": ["of"]},
    ),
    Finding("DP9", "fail", "1.2 MB per new sample"),
    *(
        Finding(entry, "not decidable", "no range", needs="--expect 0-1")
        for entry in ("DP10", "DP12")
    ),
    Finding("labels", "not applicable", "no field labels"),
]


def report(findings: list[Finding] = FINDINGS, **context) -> dict:
    run = Run(
        loader="data:make",
        command="python -m x",
        timeout=20,
        probes={"look": LOOK, "methods": HUNG},
        only={finding.entry for finding in findings},
        ignored={"DP9": "it fits", "DP3": "why"},
    )
    return document(findings, run._replace(**context))


def test_an_entry_has_the_verdict_of_its_worst_finding_and_only_what_is_no_pass_is_ignored():
    entries = {entry["name"]: entry for entry in json.loads(json.dumps(report()))["entries"]}
    assert {name: entry["verdict"] for name, entry in entries.items()} == {
        "DP2": "fail",
        "DP3": "pass",
        "DP4": "fail",
        "DP9": "ignored",
        "DP10": "not decidable",
        "DP12": "not decidable",
        "labels": "not applicable",
    }
    assert [row["verdict"] for row in entries["DP2"]["findings"]] == ["fail", "pass"]
    assert (entries["DP9"]["reason"], entries["DP9"]["findings"][0]["verdict"]) == (
        "it fits",
        "fail",
    )
    assert entries["DP4"]["findings"][0]["fix"] == ENTRIES["DP4"].fix


def test_what_cannot_be_decided_can_be_ignored_and_what_does_not_apply_need_not_be():
    entries = report(ignored={"DP10": "why", "labels": "why"})["entries"]
    verdicts = {entry["name"]: entry["verdict"] for entry in entries}
    assert (verdicts["DP10"], verdicts["labels"]) == ("ignored", "not applicable")


def test_an_entry_without_a_finding_is_no_pass_and_a_wrong_name_is_refused():
    entries = report(FINDINGS[:1], only=[], ignored={})["entries"]
    wanted = {**dict.fromkeys(ENTRIES, "not decidable"), "DP3": "pass"}
    assert {entry["name"]: entry["verdict"] for entry in entries} == wanted
    with pytest.raises(KeyError, match="DP99"):
        report([Finding("DP99", "fail")])


@pytest.mark.parametrize(
    "verdicts, look, strict, code",
    [
        ({"DP1": "pass", "DP5": "not applicable"}, "ok", True, 0),
        ({"DP1": "fail"}, "ok", False, 1),
        ({"DP1": "not decidable"}, "ok", False, 0),
        ({"DP1": "not decidable"}, "ok", True, 1),
        ({"DP9": "fail"}, "ok", True, 0),
        ({"DP1": "fail", "end": "fail"}, "ok", False, 3),
        ({"DP1": "fail"}, "raised", False, 2),
        ({}, "hung", False, 3),
        ({"DP1": "pass"}, "died", False, 3),
        ({"DP1": "pass"}, "memory", False, 3),
        ({"DP1": "pass"}, "late", False, 3),
    ],
)
def test_exit_codes(verdicts, look, strict, code):
    findings = [Finding(*pair) for pair in verdicts.items()]
    probes = {"look": Result(look, [{}], {}, 0.1)}
    assert exit_code(report(findings, probes=probes), strict) == code


def test_the_terminal_shows_fails_with_evidence_and_fix_then_what_would_decide_then_the_rest():
    lines = text(report()).splitlines()
    assert (
        lines[0]
        == "Audit of data:make (python: 3.11.2, torch: 2.13.0, start_method: fork, seconds: 21)"
    )
    assert lines[1] == "2 fail, 2 not decidable, 1 pass, 1 not applicable, 1 ignored"
    assert lines[2:4] == ["  probe methods hung: no end after 20 s (data.py, line 7)", ""]
    assert lines[5:9] == [
        "  cause     all come twice",
        "  evidence  ids: [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, ...]",
        "            at: [{'rank': 0}, {'rank': 1}]",
        "  fix       i % 4 == rank * 2",
    ]
    titles = [line[:5] for line in lines[9:] if line[:1].isupper()]
    assert titles == ["FAIL ", "NOT D", "IGNOR", "PASS ", "NOT A"]
    assert {
        "  DP10 DP12  no range; needs --expect 0-1",
        "  DP9  1.2 MB per new sample; it fits",
    } < {*lines}
    assert max(map(len, lines)) <= 100 and "".join(lines).isprintable()
    assert "trace" not in "".join(lines)
    # Of a long text six lines, the first with its name, and the link of each entry.
    assert sum("xxx" in line for line in lines) == 5
    links = [line.split()[1] for line in lines if line.startswith("  link ")]
    assert links == [ENTRIES[name].urls[0] for name in ("DP2", "DP4")]


OVER = {"text": "the 10 s are over"}


@pytest.mark.parametrize(
    "ended, late, needed",
    [
        # Four times as slow as usual: methods need 14 s, and have 0.4 of the time.
        ({"look": 1.2}, {"methods": 0.0}, 40),
        ({"look": 0.3}, {"labels": 0.0}, 20),  # probes took little, and to start them the rest
        # It was cut off after 3.2 s, and may use 0.4 of the time.
        ({"look": 0.3}, {"methods": 3.2}, 20),
        ({"look": 0.3, "methods": 9.0}, {"epochs": 4.9}, 20),  # of which 4.9 s are spent
        ({"look": 0.3, "epochs": 30.0}, {"labels": 0.0}, 40),
        ({"look": 0.3, "epochs": 4.0}, {}, 20),  # epochs were read until the time was over
        ({"look": 0.3}, {"methods": 30.0}, 150),  # at least twice what it had, of 0.4 of the time
    ],
)
def test_what_the_time_did_not_suffice_for_is_named_with_the_time_that_does(ended, late, needed):
    probes = {name: Result("ok", LOOK.data, {}, seconds) for name, seconds in ended.items()}
    probes |= {name: Result("late", [], OVER, seconds) for name, seconds in late.items()}
    findings = [
        Finding("DP6", "not decidable", "the probe edges died"),
        Finding("DP6", "not decidable", "the probe methods late", needs="a longer --timeout"),
        Finding("DP2", "fail", "all come twice"),
        Finding("DP2", "not decidable", "2 batches were read", needs="a longer --timeout"),
        Finding("DP10", "not decidable", "no range", needs="--expect 0-1"),
    ]
    made = report(findings, probes=probes, timeout=10.0)
    assert made["unreached"] == {"entries": ["DP6"], "timeout": 10.0, "needed": needed}
    words = f"DP6: the 10 s were over; as fast as it went here, all of it takes about {needed} s: "
    assert words + f"--timeout {needed}" in " ".join(text(made).split())
    # One that was not begun is told by its entries alone.
    assert ("  probe " in text(made)) == any(late.values())
    assert words + f"--timeout {needed}" in " ".join(page(made).split())


def test_fails_are_shown_by_code_scanning_where_the_loader_is_made(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train").mkdir()
    code = "import torch\n\n\ndef make():\n    pass\n\n\nclass Module:\n    pass\n"
    (tmp_path / "train/data.py").write_text(code)
    lines = {
        "train/data.py:make": 4,
        "train.data:make": 4,
        "train.data:Module": 8,
        "train/data.py:x": 1,
    }
    for loader, line in lines.items():
        other = [Finding("DP4", verdict, "three shapes") for verdict in ("fail", "not decidable")]
        findings = [*FINDINGS, *other]
        [run] = sarif(report(findings, loader=loader))["runs"]
        assert [rule["id"] for rule in run["tool"]["driver"]["rules"]] == ["DP2", "DP4"]
        # Each finding that fails; DP9 is ignored.
        assert [result["ruleId"] for result in run["results"]] == ["DP2", "DP4", "DP4"]
        place = run["results"][0]["locations"][0]["physicalLocation"]
        assert place["artifactLocation"]["uri"] == "train/data.py"
        assert place["region"]["startLine"] == line
    words = run["results"][0]["message"]["text"]
    assert words.startswith("all come twice; ids: [0, 1,")
    assert words.endswith("Fix: i % 4 == rank * 2")


def test_the_page_shows_what_the_terminal_does_and_needs_nothing_else():
    html = page(report())
    [shown] = ElementTree.fromstring(html).iter("pre")
    assert shown.text == text(report())
    assert not re.search(r"<(script|link|img|iframe|b>)|@import|url\(|\bon\w+=|src=", html)
