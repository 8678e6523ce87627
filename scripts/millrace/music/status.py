"""The jobs of the music lane and what they have made: for `millrace status` and the end of a
run."""

from __future__ import annotations

from pathlib import Path

from millrace.common import jsonl, progress
from millrace.common.errors import counted
from millrace.common.workflow.status import by_partition, partition_files
from millrace.music.inputs import COVERAGE, INDEX, MERGE

_PAGE = "results/music/report/training.html"
_RUNS = Path("results/music/runs")
_FIGURES = (("valid/m_MAP", "MAP", ".3f"), ("valid/m_ARP", "NAR (%)", ".1f"))


def steps() -> list[tuple[str, str, dict[str, list] | None]]:
    """Name, output and jobs of each step, over the partitions of the last parse."""
    own = by_partition(partition_files("music"))
    tables = [f"results/music/features/{name}.parquet" for name in own]
    return [
        ("build_feature_index", "results/music/features/{}.parquet", own),
        ("merge_feature_index", INDEX, {"all": [MERGE, *tables]}),
        ("train_model", "results/music/runs/{}/metrics.json", None),
        ("evaluate_model", "results/music/runs/{}/test.json", None),
        ("report_training", _PAGE, None),
    ]


def pages() -> list[str]:
    """The pages for people."""
    return [_PAGE]


def facts() -> dict[str, str]:
    """Tracks of the index, and what of each split has features; figures of the runs, before and
    after."""
    lines = {}
    if Path(COVERAGE).is_file():
        lines[COVERAGE] = _coverage_line()
    for path in sorted(_RUNS.glob("*/metrics.json")):
        lines[str(path)] = f"run {path.parent.name}: {_run_line(path)}"
    for path in sorted(_RUNS.glob("*/test.json")):
        figures = jsonl.read(path)["figures"]
        shown = f"MAP {figures['m_MAP']:.3f}, NAR {figures['m_ARP']:.1f} %"
        lines[str(path)] = f"run {path.parent.name}: test {shown}"
    return lines


def _coverage_line() -> str:
    coverage = jsonl.read(COVERAGE)
    lines = [f"{coverage['tracks']:,} tracks in the index"]
    lines += [split["line"] for split in coverage["splits"]]
    if coverage.get("hop_note"):
        lines.append(coverage["hop_note"])
    lines += coverage.get("leak_lines", [])
    return "; ".join(lines)


def _run_line(path: Path) -> str:
    """The figures of a run on the valid split, from the first evaluation to the last."""
    metrics = jsonl.read(path)
    first = metrics["first_evaluation"] or {}
    last = metrics["last_evaluation"] or {}
    shown = []
    for key, name, form in _FIGURES:
        if key in first and key in last:
            shown.append(f"valid {name} {first[key]:{form}} -> {last[key]:{form}}")
    figures = ", ".join(shown) or "no figures on the valid split"
    steps = metrics["optimizer_steps"]
    seconds = metrics["seconds"]
    return f"{figures}, {counted(steps, 'step')} in {progress.clock(seconds)}"
