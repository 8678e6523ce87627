"""The jobs of the music lane and what they have made: for `millrace status` and the end of a run."""

from __future__ import annotations

from pathlib import Path

from millrace.common import jsonl
from millrace.common.workflow import sources
from millrace.music.inputs import COVERAGE, INDEX, MERGE, PARTITIONS, SAMPLE

PAGES: list[str] = []


def steps() -> list[tuple[str, str, dict[str, list]]]:
    """Name, output and jobs of each step, over the partitions of the last parse."""
    names = sources.load(PARTITIONS).partitions.get("features", [])
    own = {name: [f"{PARTITIONS}/{name}.json"] for name in names}
    tables = [f"results/music/features/{name}.parquet" for name in names]
    return [
        ("build_feature_index", "results/music/features/{}.parquet", own),
        ("merge_feature_index", INDEX, {"all": [MERGE, *tables]}),
        ("verify_h5_sample", SAMPLE, {"sample": [INDEX]}),
        ("train_model", "results/music/runs/{}/metrics.json", _begun("train_model")),
        ("evaluate_model", "results/music/runs/{}/test.json", _begun("evaluate_model")),
    ]


def _begun(step: str) -> dict[str, list]:
    return {log.stem: [] for log in Path(f"logs/music/{step}").glob("*.log")}


def facts() -> dict[str, str]:
    """Tracks of the index, and what of each split has features."""
    if not Path(COVERAGE).is_file():
        return {}
    coverage = jsonl.read(COVERAGE)
    lines = [f"{coverage['tracks']:,} tracks in the index", *(each["line"] for each in coverage["splits"])]
    return {COVERAGE: "; ".join(lines)}
