"""The throughput report: the page holds the figures of the runs, nothing breaks it, its bytes are always the
same."""

from __future__ import annotations

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import jinja2
import pytest
from docutils.core import publish_parts

from millrace.asr import report_throughput
from millrace.asr.throughput.comparison import Throughput
from millrace.common import atomic, jsonl
from tests.asr.run_folders import BUCKETS, CPU, GPU, MadeUp, bucket_config

ROOT = Path(__file__).parents[2]
OUTPUTS = ("summary.html", "comparison.svg", "phases.svg", "buckets.svg", "result.json")
ODD = '<script>alert(1)</script> & "日本" \x00'
NAIVE = {
    "seconds": 0.55,
    "padding": 0.47,
    "mixed": True,
    "decode": 0.4,
    "shares": {"data_wait": 0.6, "forward": 0.4},
}


def _write(
    folder: Path, machine: dict = CPU, gpu: tuple = (None, None, None), benches: int = 1
) -> dict[str, list[str]]:
    runs = {
        "bench": [MadeUp(f"bench_{n}", seed=n, machine=machine, gpu=gpu[0]) for n in range(benches)],
        "baseline": [MadeUp("baseline", machine=machine, gpu=gpu[1], **NAIVE)],
        "ideal": [MadeUp("ideal", machine=machine, gpu=gpu[2], seconds=0.19)],
        "check": [MadeUp("check", machine=machine, steps=50, log_steps=5)],
        "profile": [MadeUp("profile", machine=machine, steps=20, log_steps=5)],
    }
    folders = {role: [str(run.write(folder)) for run in made] for role, made in runs.items()}
    phases = [
        {"phase": name, "host_seconds": seconds, "device_seconds": 0.5 * seconds}
        for name, seconds in (("data wait", 0.1), ("forward", 1.0), ("forward: mel", 0.25), ("idle", 0.05))
    ]
    operators = [{"operator": "aten::mm", "host_seconds": 0.5, "device_seconds": 0.0, "calls": 70}]
    facts = {"steps": 10, "seconds": 2.0, "device": "cpu", "phases": phases, "operators": operators}
    atomic.write_json(
        folder / "profile" / "profile.json", {**facts, "device_busy_seconds": None, "trace": "t.json.gz"}
    )
    bucket_config(folder)
    return folders


def _arguments(folder: Path, runs: dict[str, list[str]], buckets: bool = True) -> list[str]:
    named = [part for role, folders in runs.items() for part in (f"--{role}", *folders)]
    named += ["--buckets", str(folder / "bucket_config.json")] if buckets else []
    flags = ("--summary", "--comparison", "--phases", "--buckets-figure", "--result")
    return named + [
        part for flag, name in zip(flags, OUTPUTS, strict=True) for part in (flag, str(folder / name))
    ]


class Tables(HTMLParser):
    """The rows of all tables by caption, the texts outside of them, and whether tags are balanced."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tables: dict[str, list[list[str]]] = {}
        self.open: list[str] = []
        self.text, self.caption, self.cell = "", "", None
        self.values: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attributes: list) -> None:
        if tag in ("meta", "path", "use", "rect"):
            return
        self.open.append(tag)
        if tag == "caption":
            self.caption = ""
        elif tag == "tr":
            self.tables[self.caption].append([])
        elif tag in ("td", "th"):
            self.cell = ""
        elif tag == "script":
            raise AssertionError("a script")
        if tag == "data":
            self.values.append(dict(attributes)["value"])

    def handle_startendtag(self, tag: str, attributes: list) -> None:
        pass

    def handle_data(self, data: str) -> None:
        self.text += data
        if self.open and self.open[-1] == "caption":
            self.caption += data
        elif self.cell is not None:
            self.cell += data

    def handle_endtag(self, tag: str) -> None:
        if tag in ("path", "use", "rect"):
            return
        assert self.open.pop() == tag
        if tag == "caption":
            self.tables[self.caption] = []
        elif tag in ("td", "th"):
            self.tables[self.caption][-1].append(self.cell.replace("\u00a0", " ").replace("\u2060", ""))
            self.cell = None


def _report(folder: Path, runs: dict[str, list[str]], **choices: bool) -> Tables:
    assert report_throughput.main(_arguments(folder, runs, **choices)) == 0
    for name in OUTPUTS[1:4]:
        ElementTree.parse(folder / name)
    found = Tables((folder / "summary.html").read_text())
    assert not found.open
    return found


def test_the_tables_hold_the_figures_of_the_runs(tmp_path: Path) -> None:
    runs = _write(tmp_path, benches=3)
    shown = _report(tmp_path, runs)
    found = Throughput.read(runs, tmp_path / "bucket_config.json")
    told = jsonl.read(tmp_path / "result.json")
    head, *rows = shown.tables["Old against new"]
    assert head == ["", "Baseline", "range", "Millrace", "range", "against naive", "Ideal loader"]
    by_name = {row[0]: row[1:] for row in rows}
    samples = told["comparison"]["samples"]
    assert by_name["Samples/s"][2] == f"{samples['bench']['value']:.0f}"
    assert by_name["Samples/s"][3] == f"{samples['bench']['low']:.0f}–{samples['bench']['high']:.0f}"
    assert by_name["Samples/s"][4] == f"{found.ratio('samples'):.2f} ×"
    assert by_name["GPU use"] == ["not measured", "", "not measured", "", "–", "not measured"]
    assert by_name["Padding in seconds"][4].startswith("−") and by_name["Padding in seconds"][4].endswith(
        " points"
    )
    assert by_name["Stability"][0] == "200 steps, clean"
    phases = {row[0]: row[1:] for row in shown.tables["Share of time by phase"]}
    assert phases["Wait for data"][1] == "2.0 %" and phases["Read and decode in the trainer"][1] == "0.0 %"
    assert phases["All"] == ["100.0 %"] * 3
    buckets = shown.tables["Our steps by bucket"]
    assert [row[0] for row in buckets[1:]] == list(BUCKETS)
    assert sum(int(row[1]) for row in buckets[1:]) == 3 * 190
    assert {row[0]: row[1] for row in shown.tables["Time of the profiled steps by phase"]}[
        "forward: mel"
    ] == "25.0"
    assert [row[0] for row in shown.tables["Runs"][1:]] == [
        "baseline",
        *("bench_0", "bench_1", "bench_2"),
        "ideal",
        "check",
        "profile",
    ]


def test_every_criterion_is_listed_with_its_figure(tmp_path: Path) -> None:
    shown = _report(tmp_path, _write(tmp_path))
    told = jsonl.read(tmp_path / "result.json")["criteria"]
    rows = [row for name in shown.tables if name.startswith("What ") for row in shown.tables[name][1:]]
    assert [(row[0], row[3]) for row in rows] == [(one["name"], one["figure"]) for one in told]
    signs = {"pass": "✓ pass", "fail": "✗ fail", "not measured": "not measured"}
    assert [row[2] for row in rows] == [signs[one["status"]] for one in told] and len(told) == 11


def test_without_a_gpu_the_page_says_so(tmp_path: Path) -> None:
    shown = _report(tmp_path, _write(tmp_path))
    assert "There was no GPU" in shown.text and "GPU use: not measured" in shown.text
    assert "CPU use (% of the cores)" in (tmp_path / "comparison.svg").read_text()


def test_with_a_gpu_its_use_is_shown(tmp_path: Path) -> None:
    shown = _report(tmp_path, _write(tmp_path, GPU, (0.93, 0.41, 0.97)))
    rows = {row[0]: row for row in shown.tables["Old against new"]}
    assert (
        rows["GPU use"][1] == "41.0 %"
        and rows["GPU use"][3] == "93.0 %"
        and rows["GPU use"][5] == "+52.0 points"
    )
    assert "NVIDIA H200" in shown.text and "no GPU" not in shown.text
    assert "GPU use (%)" in (tmp_path / "comparison.svg").read_text()


def test_with_bench_alone_there_is_a_page(tmp_path: Path) -> None:
    run = MadeUp("bench", steps=3, log_steps=1, recorded=False, held_out=None).write(tmp_path)
    shown = _report(tmp_path, {"bench": [str(run)]}, buckets=False)
    assert shown.tables["Old against new"][0] == ["", "Millrace", "range"]
    assert "No run with an ideal loader" in shown.text
    assert "No steps were recorded" in (tmp_path / "buckets.svg").read_text()


def test_a_run_that_died_is_reported(tmp_path: Path) -> None:
    runs = _write(tmp_path)
    runs["bench"].append(
        str(MadeUp("bench_9", steps=60, finished=False, failed="out of memory").write(tmp_path))
    )
    shown = _report(tmp_path, runs)
    stability = next(
        row for row in shown.tables["What a run of 200 steps has to reach"] if row[0] == "Stability"
    )
    assert stability[2:] == ["✗ fail", "bench_9 after 60 steps: out of memory"]
    assert {row[0]: row[5] for row in shown.tables["Runs"]}["bench_9"] == "out of memory"


def test_odd_names_break_nothing(tmp_path: Path) -> None:
    runs = _write(tmp_path)
    facts = {"model": ODD, "precision": ODD}
    runs["bench"] = [str(MadeUp("a&b <i>", facts=facts, machine={**CPU, "cpu": ODD}).write(tmp_path))]
    config = jsonl.read(tmp_path / "bucket_config.json")
    config["buckets"].append({"bucket_id": ODD, "hours": 0.1, "samples": 3})
    atomic.write_json(tmp_path / "bucket_config.json", config)
    shown = _report(tmp_path, runs)
    clean = ODD.replace("\x00", "\ufffd")
    assert clean in [row[0] for row in shown.tables["Our steps by bucket"]]
    assert "a&b <i>" in [row[0] for row in shown.tables["Runs"]]
    assert f"CPU ({clean})" in shown.text


def test_the_same_runs_give_the_same_bytes(tmp_path: Path) -> None:
    runs = _write(tmp_path)
    _report(tmp_path, runs)
    first = {name: (tmp_path / name).read_bytes() for name in OUTPUTS}
    command = [sys.executable, "-m", "millrace.asr.report_throughput", *_arguments(tmp_path, runs)]
    subprocess.run(
        command,
        check=True,
        cwd=ROOT,
        capture_output=True,
        env={"PYTHONHASHSEED": "7", "PYTHONPATH": f"{ROOT}/scripts:{ROOT}"},
    )
    assert {name: (tmp_path / name).read_bytes() for name in OUTPUTS} == first


def test_the_page_needs_nothing_else(tmp_path: Path) -> None:
    _report(tmp_path, _write(tmp_path))
    html = (tmp_path / "summary.html").read_text()
    assert not re.search(r'(src|href)="(?!#|data:)', html) and "@import" not in html
    identifiers = re.findall(r'\bid="([^"]+)"', html)
    assert len(identifiers) == len(set(identifiers))
    assert set(re.findall(r'href="#([^"]+)"', html)) <= set(identifiers)


def test_no_runs_is_one_clear_line(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    (tmp_path / "empty").mkdir()
    arguments = _arguments(tmp_path, {"bench": [str(tmp_path / "empty")]}, buckets=False)
    assert report_throughput.main(arguments) == 1
    assert not (tmp_path / "summary.html").exists()
    assert "no training step was logged here" in capsys.readouterr().err


def test_reading_a_report_needs_no_torch(tmp_path: Path) -> None:
    code = "import sys, millrace.asr.report_throughput; assert 'torch' not in sys.modules and 'pyarrow' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


@pytest.mark.parametrize("name", ["", "_comparison", "_phases", "_buckets"])
def test_captions_are_restructured_text(name: str) -> None:
    text = jinja2.Template((ROOT / "rules" / "report" / f"asr_throughput{name}.rst").read_text()).render(
        snakemake=None
    )
    parts = publish_parts(text, writer="html5", settings_overrides={"halt_level": 2, "report_level": 2})
    assert "<p>" in parts["body"]
