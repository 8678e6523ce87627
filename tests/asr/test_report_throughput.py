"""The throughput report: the page holds the figures of the runs, its bytes are stable."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from millrace.asr import report_throughput
from millrace.common import atomic, jsonl
from millrace.common.report.figures import human_share
from tests.asr.run_folders import BUCKETS, CPU, bucket_config, write_runs
from tests.common.report.pages import Page

ROOT = Path(__file__).parents[2]
OUTPUTS = ("summary.html", "result.json")
COMPARISON = "Baseline against Millrace"
CRITERIA = "What a run of 200 steps has to reach"
PROFILE = "Time of the profiled steps by phase"


def _write(folder: Path, **changed: dict) -> list[str]:
    """Write the runs; the arguments of the step."""
    arguments = [f"--buckets={bucket_config(folder)}"]
    for role, run in write_runs(folder, **changed).items():
        arguments.append(f"--{role}={run}/metrics.json")
    seconds = {"data wait": 0.1, "forward": 1.0, "forward: mel": 0.25}
    phases = [
        {"phase": name, "host_seconds": spent, "device_seconds": 0.5 * spent}
        for name, spent in seconds.items()
    ]
    facts = {"steps": 10, "seconds": 2.0, "phases": phases, "trace": "t.json.gz"}
    atomic.write_json(folder / "profile" / "profile.json", facts)
    for flag, name in zip(("--summary", "--result"), OUTPUTS, strict=True):
        arguments.append(f"{flag}={folder}/{name}")
    return arguments


def _report(folder: Path, arguments: list[str]) -> Page:
    assert report_throughput.main(arguments) == 0
    shown = Page((folder / "summary.html").read_text())
    shown.check()
    return shown


def test_the_tables_hold_the_figures_of_the_runs(tmp_path):
    shown = _report(tmp_path, _write(tmp_path))
    result = jsonl.read(tmp_path / "result.json")
    assert shown.outline == {
        "Success criteria": [CRITERIA],
        "Baseline against Millrace": [COMPARISON],
        "Where the time goes": ["Share of time by phase"],
        "Buckets": ["Our steps by bucket"],
        "Profile": [PROFILE],
    }
    assert shown.texts[COMPARISON][0] == ["", "Baseline", "Millrace", "against the baseline"]
    rows, values = shown.by_name(COMPARISON), shown.by_name(COMPARISON, values=True)
    for measure in result["comparison"].values():
        for place, name in enumerate(("baseline", "bench", "ratio")):
            if measure[name] is not None:
                exact = pytest.approx(measure[name], abs=1e-6)
                assert values[measure["name"]][place] == exact
    samples = result["comparison"]["samples"]
    assert rows["Samples/s"][1:] == [f"{samples['bench']:.0f}", f"{samples['ratio']:.2f} ×"]
    assert rows["GPU use"] == ["40.0 %", "95.0 %", "2.37 ×"]

    phases = shown.by_name("Share of time by phase")
    assert phases["Wait for data"] == ["60.0 %", "2.0 %"]
    assert phases["Optimiser"] == ["0.0 %", "0.0 %"]  # measured
    assert rows["Waiting for data"][:2] == ["60.0 %", "2.0 %"]
    buckets = shown.by_name("Our steps by bucket")
    assert list(buckets) == list(BUCKETS) == [bucket["name"] for bucket in result["buckets"]]
    assert sum(int(row[0]) for row in buckets.values()) == 190
    seen = sum(bucket["seen_hours"] for bucket in result["buckets"])
    for bucket in result["buckets"]:
        row = buckets[bucket["name"]]
        assert row[1] == f"{1000 * bucket['step_seconds']:.0f}"
        assert row[-2] == human_share(bucket["seen_hours"], seen)
        assert row[-1] == human_share(bucket["hours"], 24)
    assert shown.by_name(PROFILE)["forward: mel"] == ["25.0", "12.5"]


def test_every_criterion_is_listed_with_its_figure(tmp_path):
    on_cpu = {"machine": CPU, "gpu": None, "facts": {"tf32": "none"}}
    shown = _report(tmp_path, _write(tmp_path, bench=on_cpu))
    assert shown.by_name(COMPARISON)["GPU use"] == ["40.0 %", "–", "–"]
    assert "32-true: " in shown.text and "TF32" not in shown.text
    result = jsonl.read(tmp_path / "result.json")
    signs = {"pass": "✓ pass", "fail": "✗ fail", "not measured": "not measured"}
    expected = [
        [one["name"], one["bar"], signs[one["status"]], one["figure"]] for one in result["criteria"]
    ]
    assert shown.texts[CRITERIA][1:] == expected and len(expected) == 6


def test_the_precision_is_said(tmp_path):
    facts = {"precision": "bf16-true", "tf32": "none"}
    shown = _report(tmp_path, _write(tmp_path, bench={"facts": facts}))
    text = " ".join(shown.text.split())
    assert "1 × NVIDIA H200" in text
    words = "bf16-true: bfloat16 weights, gradients and Adam states, 8 bytes a parameter"
    assert words in text
    assert "Not comparable: precision is 32-true in baseline, bf16-true in bench." in text
    plain = _report(tmp_path, _write(tmp_path, bench={"facts": {"tf32": "none"}}))
    assert "(no TF32)" in " ".join(plain.text.split())


def test_a_bucket_without_rows_is_not_on_the_page(tmp_path):
    arguments = _write(tmp_path)
    bucket_config(tmp_path, b_5_7=0)
    buckets = _report(tmp_path, arguments).by_name("Our steps by bucket")
    assert list(buckets) == [name for name in BUCKETS if name != "b_5_7"]


def test_a_run_that_died_is_reported(tmp_path):
    died = {"steps": 60, "finished": False, "failed": "out of memory"}
    shown = _report(tmp_path, _write(tmp_path, bench=died))
    stability = shown.by_name(CRITERIA)["Stability"]
    assert stability[1:] == ["✗ fail", "bench after 60 steps: out of memory"]


def test_the_same_runs_give_the_same_bytes(tmp_path):
    arguments = _write(tmp_path)
    _report(tmp_path, arguments)
    first = {name: (tmp_path / name).read_bytes() for name in OUTPUTS}
    command = [sys.executable, "-m", "millrace.asr.report_throughput", *arguments]
    env = {"PYTHONHASHSEED": "7", "PYTHONPATH": f"{ROOT}/scripts:{ROOT}"}
    subprocess.run(command, check=True, cwd=ROOT, capture_output=True, env=env)
    assert {name: (tmp_path / name).read_bytes() for name in OUTPUTS} == first


def test_reading_a_report_needs_no_torch():
    code = (
        "import sys, millrace.asr.report_throughput; assert not {'torch', 'pyarrow'} &"
        " set(sys.modules)"
    )
    subprocess.check_call([sys.executable, "-c", code], cwd=ROOT)
