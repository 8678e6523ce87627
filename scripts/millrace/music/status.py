"""The jobs of the music lane and what they have made: for `millrace status` and the end of a
run."""

from __future__ import annotations

from pathlib import Path

from millrace.common import jsonl
from millrace.common.workflow.status import partition_files
from millrace.music.inputs import COVERAGE, INDEX, MERGE, SAMPLE

PAGES: list[str] = []


def steps() -> list[tuple[str, str, dict[str, list] | None]]:
    """Name, output and jobs of each step, over the partitions of the last parse."""
    own = partition_files("music").get("features", {})
    tables = [f"results/music/features/{name}.parquet" for name in own]
    return [
        ("build_feature_index", "results/music/features/{}.parquet", own),
        ("merge_feature_index", INDEX, {"all": [MERGE, *tables]}),
        ("verify_h5_sample", SAMPLE, {"sample": [INDEX]}),
        ("train_model", "results/music/runs/{}/metrics.json", None),
        ("evaluate_model", "results/music/runs/{}/test.json", None),
    ]


def facts() -> dict[str, str]:
    """Tracks of the index, and what of each split has features."""
    if not Path(COVERAGE).is_file():
        return {}
    coverage = jsonl.read(COVERAGE)
    lines = [
        f"{coverage['tracks']:,} tracks in the index",
        *(each["line"] for each in coverage["splits"]),
    ]
    lines += filter(None, [coverage.get("hop_note")])
    lines += coverage.get("leak_lines", [])
    return {COVERAGE: "; ".join(lines)}
