"""The jobs of the ASR lane and what they have made: for `millrace status` and the end of a run."""

from __future__ import annotations

import re
from pathlib import Path

from millrace.asr.buckets.config import leak_lines, read_ledgers, totals
from millrace.asr.inputs import BUCKETS, CALIBRATION, PARTITIONS, RUNS_PAGE, VERIFICATION
from millrace.common import jsonl, progress
from millrace.common.errors import counted
from millrace.common.ledger import Ledger
from millrace.common.workflow.status import by_partition, partition_files

_THROUGHPUT_PAGE = "results/asr/report/throughput.html"
_MEASURED = re.compile(r"check|baseline|profile|bench")  # runs of the throughput report


def steps() -> list[tuple[str, str, dict[str, list] | None]]:
    """Name, output and jobs of each step, over the partitions of the last parse."""
    groups = partition_files("asr")
    before: list[str | Path] = [*groups.get("tars", ())]
    before = before or [
        "results/speech/index.parquet",
        *Path("results/speech/partitions").glob("*.json"),
    ]
    return [
        ("build_tar_indices", "results/asr/tar_index/{}.parquet", by_partition(groups)),
        ("build_bucket_manifests", BUCKETS, {"all": before}),
        ("calibrate_bucket_bs", "results/asr/calibration/buckets/{}.json", None),
        ("merge_calibration", CALIBRATION, None),
        ("verify_calibration", VERIFICATION, None),
        ("train_model", "results/asr/runs/{}/metrics.json", None),
        ("report_runs", RUNS_PAGE, None),
        ("report_throughput", _THROUGHPUT_PAGE, None),
        ("upload_model", "results/asr/hub/{}/receipt.json", None),
    ]


def pages() -> list[str]:
    """The pages for people."""
    return [RUNS_PAGE, _THROUGHPUT_PAGE]


def facts() -> dict[str, str]:
    """Tars; samples, rejected rows and hours of the buckets; error rates of the runs, from first to
    last."""
    lines = {}
    files = partition_files("asr").get("tars")
    if files:
        tars = sum(len(jsonl.read(path)["tars"]) for path in files)
        lines[f"{PARTITIONS}/index/partitions.json"] = f"{tars} tars"
    if Path(BUCKETS).is_file():
        built = totals(Path(BUCKETS))
        hours = ", ".join(f"{name} {value:.2f}" for name, value in built.hours)
        counts = "; ".join(
            [f"{built.samples} samples in buckets, {_rejected()}", *leak_lines(Path(BUCKETS))]
        )
        lines[BUCKETS] = f"{counts}; hours: {hours}"
    for path in sorted(Path("results/asr/runs").glob("*/metrics.json")):
        if not _MEASURED.fullmatch(path.parent.name):
            lines[str(path)] = f"run {path.parent.name}: {_run_line(path)}"
    return lines


def _run_line(path: Path) -> str:
    """The error rates of a run, from first to last, and how long it took."""
    metrics = jsonl.read(path)
    first = metrics["first_evaluation"] or {}
    last = metrics["last_evaluation"] or {}
    test = metrics.get("test") or {}
    keys = [key for key in ("wer", "cer") if key in first and key in last]
    rates = [f"dev {key.upper()} {first[key]:.3f} -> {last[key]:.3f}" for key in keys]
    rates += [f"test {key.upper()} {test[key]:.3f}" for key in keys if key in test]
    shown = ", ".join(rates) or "no error rates"
    return f"{shown}, {metrics['optimizer_steps']} steps in {progress.clock(metrics['seconds'])}"


def _rejected() -> str:
    """How many rows of all splits the buckets lack, with the reasons, the most frequent first."""
    ledgers = read_ledgers(Path(BUCKETS))
    if not ledgers:
        return "no ledger of rejected rows"
    total = Ledger.total("asr_build_bucket_manifests", "all splits", ledgers, "row")
    if not total.rows_rejected:
        return "no rows rejected"
    return f"{counted(total.rows_rejected, 'row')} rejected ({total.reasons()})"
