"""The throughput report: the page holds the figures of the runs, nothing breaks it, its bytes are
stable."""

from __future__ import annotations

import re
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from millrace.asr import report_throughput
from millrace.asr.throughput.comparison import MEASURES
from millrace.common import atomic, jsonl
from tests.asr.run_folders import BUCKETS, CPU, GPU, MadeUp, bucket_config
from tests.common.report.pages import Page

ROOT = Path(__file__).parents[2]
OUTPUTS = ("summary.html", "result.json")
COMPARISON = "Baseline against Millrace"
BASELINE = {"seconds": 0.55, "padding": 0.47, "mixed": True, "decode": 0.4}
BASELINE["shares"] = {"data_wait": 0.6, "forward": 0.4}


def _write(
    folder: Path, machine: dict = CPU, gpu: tuple = (None, None), benches: int = 1
) -> dict[str, list[str]]:
    runs = {
        "bench": [
            MadeUp(f"bench_{n}", seed=n, machine=machine, gpu=gpu[0]) for n in range(benches)
        ],
        "baseline": [MadeUp("baseline", machine=machine, gpu=gpu[1], **BASELINE)],
        "check": [MadeUp("check", machine=machine, steps=50, log_steps=5)],
        "profile": [MadeUp("profile", machine=machine, steps=20, log_steps=5)],
    }
    folders = {role: [str(run.write(folder)) for run in made] for role, made in runs.items()}
    seconds = {"data wait": 0.1, "forward": 1.0, "forward: mel": 0.25, "idle": 0.05}
    phases = [
        {"phase": name, "host_seconds": spent, "device_seconds": 0.5 * spent}
        for name, spent in seconds.items()
    ]
    facts = {"steps": 10, "seconds": 2.0, "phases": phases}
    facts |= {"trace": "t.json.gz", "device": "cpu"}
    if machine is GPU:
        facts |= {"device": "cuda", "device_seconds": 2.5, "device_busy_seconds": 1.9}
    atomic.write_json(folder / "profile" / "profile.json", facts)
    bucket_config(folder)
    return folders


def _arguments(folder: Path, runs: dict[str, list[str]], buckets: bool = True) -> list[str]:
    named = [part for role, folders in runs.items() for part in (f"--{role}", *folders)]
    named += ["--buckets", str(folder / "bucket_config.json")] if buckets else []
    flags = ("--summary", "--result")
    outputs = [(flag, str(folder / name)) for flag, name in zip(flags, OUTPUTS, strict=True)]
    return [*named, *(part for pair in outputs for part in pair)]


def _report(folder: Path, runs: dict[str, list[str]], **choices: bool) -> Page:
    assert report_throughput.main(_arguments(folder, runs, **choices)) == 0
    shown = Page((folder / "summary.html").read_text())
    shown.check()
    return shown


CRITERIA = "What a run of 200 steps has to reach"
OUTLINE = {
    "Success criteria": [CRITERIA],
    "Baseline against Millrace": [COMPARISON],
    "Where the time goes": ["figure", "Share of time by phase"],
    "Buckets": ["Our steps by bucket"],
    "Profile": ["Time of the profiled steps by phase"],
    "Runs": ["Runs"],
}


def test_the_tables_hold_the_figures_of_the_runs(tmp_path: Path) -> None:
    shown = _report(tmp_path, _write(tmp_path, benches=3))
    result = jsonl.read(tmp_path / "result.json")
    assert shown.outline == OUTLINE
    head = ["", "Baseline", "Millrace", "against the baseline"]
    assert shown.texts[COMPARISON][0] == head
    rows, values = shown.by_name(COMPARISON), shown.by_name(COMPARISON, values=True)
    for measure in result["comparison"].values():
        for place, role in ((0, "baseline"), (1, "bench")):
            if measure[role] is not None:
                assert values[measure["name"]][place] == pytest.approx(
                    measure[role]["value"], abs=1e-6
                )
    samples = result["comparison"]["samples"]
    assert samples["bench"]["value"] == statistics.median(samples["bench"]["runs"])
    assert rows["Samples/s"][1:] == [
        f"{samples['bench']['value']:.0f}",
        f"{samples['ratio']:.2f} ×",
    ]
    assert rows["GPU use"] == ["not measured", "not measured", "–"]
    assert re.fullmatch(r"−\d+\.\d points", rows["Padding in seconds"][2])
    assert rows["Stability"][0] == "200 steps, clean"

    phases = shown.by_name("Share of time by phase")
    assert (
        phases["Wait for data"][1] == "2.0 %"
        and phases["Read and decode in the trainer"][1] == "0.0 %"
    )
    assert phases["All"] == ["100.0 %"] * 2
    buckets = shown.by_name("Our steps by bucket")
    assert list(buckets) == list(BUCKETS)
    assert sum(int(row[0]) for row in buckets.values()) == 3 * 190
    profile = shown.by_name("Time of the profiled steps by phase")
    assert profile["forward: mel"] == ["25.0", "12.5 %"]
    roles = ["baseline", *["bench"] * 3, "check", "profile"]
    assert [run["role"] for run in result["runs"]] == roles
    assert list(shown.by_name("Runs")) == [run["name"] for run in result["runs"]]
    assert [bucket["name"] for bucket in result["buckets"]] == list(BUCKETS)
    assert set(result["comparison"]) == set(MEASURES)


def test_every_criterion_is_listed_with_its_figure(tmp_path: Path) -> None:
    shown = _report(tmp_path, _write(tmp_path))
    result = jsonl.read(tmp_path / "result.json")
    signs = {"pass": "✓ pass", "fail": "✗ fail", "not measured": "not measured"}
    expected = [
        [one["name"], one["bar"], signs[one["status"]], one["figure"]] for one in result["criteria"]
    ]
    assert shown.texts[CRITERIA][1:] == expected and len(expected) == 8


NONE = ["not measured", "not measured", "–"]


@pytest.mark.parametrize(
    ("machine", "gpu", "row", "there"),
    [
        (CPU, (None,) * 2, NONE, "There was no GPU"),
        (
            GPU,
            (0.93, 0.41),
            ["41.0 %", "93.0 %", "+52.0 points"],
            "NVIDIA H200",
        ),
    ],
)
def test_use_of_the_gpu_is_shown_if_there_is_one(
    tmp_path: Path, machine: dict, gpu: tuple, row: list[str], there: str
) -> None:
    shown = _report(tmp_path, _write(tmp_path, machine, gpu))
    assert shown.by_name(COMPARISON)["GPU use"] == row
    assert there in shown.text and ("no GPU" in shown.text) == (machine is CPU)
    profile = shown.by_name("Time of the profiled steps by phase")
    assert profile["forward"] == ["100", *([] if machine is CPU else ["50.0"]), "50.0 %"]
    # Of the time until the device was done, not of the host's.
    assert ("The GPU ran kernels in 76.0 % of the time" in shown.text) == (machine is GPU)


def test_figures_of_another_system_are_a_column(tmp_path: Path) -> None:
    runs = _write(tmp_path)
    reference = '{"name": "E1", "samples_per_second": 123.2, "peak_memory_gb": 123.8}'
    assert report_throughput.main([*_arguments(tmp_path, runs), "--reference", reference]) == 0
    shown = Page((tmp_path / "summary.html").read_text())
    rows = shown.by_name(COMPARISON)
    assert shown.texts[COMPARISON][0][-1] == "E1"
    last = [rows[name][-1] for name in ("Samples/s", "Peak memory", "GPU use")]
    assert last == ["123", "124 GB", "–"]
    assert "measured elsewhere" in shown.text
    # The config's default has a name alone.
    assert (
        report_throughput.main([*_arguments(tmp_path, runs), "--reference", '{"name": "E1"}']) == 0
    )
    assert "E1" not in (tmp_path / "summary.html").read_text()
    for wrong in ('{"gpu_use": 58.8}', '{"padding": "48 %"}', '{"waiting": 0.1}'):
        assert report_throughput.main([*_arguments(tmp_path, runs), "--reference", wrong]) == 1
    nameless = '{"gpu_use": 0, "samples_per_second": 9}'
    assert report_throughput.main([*_arguments(tmp_path, runs), "--reference", nameless]) == 0
    rows = Page((tmp_path / "summary.html").read_text()).by_name(COMPARISON)
    assert rows["GPU use"][-1] == "0.0 %"


def test_with_bench_alone_there_is_a_page(tmp_path: Path) -> None:
    run = MadeUp("bench", steps=3, log_steps=1, recorded=False, held_out=None).write(tmp_path)
    shown = _report(tmp_path, {"bench": [str(run)]}, buckets=False)
    assert shown.texts[COMPARISON][0] == ["", "Millrace"]
    assert "Profile" not in shown.outline
    assert "no bucket configuration was given" in shown.text


def test_a_run_that_died_is_reported(tmp_path: Path) -> None:
    runs = _write(tmp_path)
    died = MadeUp("bench_9", steps=60, finished=False, failed="out of memory").write(tmp_path)
    runs["bench"].append(str(died))
    shown = _report(tmp_path, runs)
    stability = shown.by_name(CRITERIA)["Stability"]
    assert stability[1:] == ["✗ fail", "bench_9 after 60 steps: out of memory"]
    assert shown.by_name("Runs")["bench_9"][4] == "out of memory"
    assert shown.by_name(COMPARISON)["Stability"][1] == "60 steps, then: out of memory"


def test_the_same_runs_give_the_same_bytes(tmp_path: Path) -> None:
    runs = _write(tmp_path)
    _report(tmp_path, runs)
    first = {name: (tmp_path / name).read_bytes() for name in OUTPUTS}
    command = [sys.executable, "-m", "millrace.asr.report_throughput", *_arguments(tmp_path, runs)]
    env = {"PYTHONHASHSEED": "7", "PYTHONPATH": f"{ROOT}/scripts:{ROOT}"}
    subprocess.run(command, check=True, cwd=ROOT, capture_output=True, env=env)
    assert {name: (tmp_path / name).read_bytes() for name in OUTPUTS} == first


def test_reading_a_report_needs_no_torch() -> None:
    code = (
        "import sys, millrace.asr.report_throughput; assert not {'torch', 'pyarrow'} &"
        " set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_the_page_says_what_precision_is_compared(tmp_path: Path) -> None:
    runs = _write(tmp_path, GPU)
    path = Path(runs["bench"][0], "throughput.json")
    atomic.write_json(path, {**jsonl.read(path), "precision": "bf16-true", "tf32": "none"})
    words = "bf16-true: bfloat16 weights, gradients and Adam states, 8 bytes a parameter"
    assert words in " ".join(_report(tmp_path, runs).text.split())
