"""The jobs of the image lane and what they have made: for `millrace status` and the end of a
run."""

from __future__ import annotations

from pathlib import Path

from millrace.common import jsonl, progress
from millrace.common.errors import counted
from millrace.common.leaks import leakage
from millrace.common.workflow.status import by_partition, partition_files
from millrace.image.inputs import INDEX

_RUNS = Path("results/image/runs")


def steps() -> list[tuple[str, str, dict[str, list[str]] | None]]:
    """Name, output and jobs of each step, over the partitions of the last parse."""
    groups = partition_files("image")
    return [
        ("create_records", "results/image/records/partitions/{}.json", by_partition(groups)),
        ("merge_records", INDEX.format(split="{}"), groups),
        ("train_active", "results/image/runs/{}/metrics.json", None),
    ]


def pages() -> list[str]:
    """The pages for people."""
    return [str(path) for path in sorted(_RUNS.glob("*/report.html"))]


def facts() -> dict[str, str]:
    """Records, files and rejects of each split; accuracies of the runs, before and after."""
    lines = {}
    for split in partition_files("image"):
        path = Path(INDEX.format(split=split))
        if path.is_file():
            index = jsonl.read(path)
            ledger = jsonl.read(path.with_name("ledger.json"))
            counts = (
                f"{split}: {ledger['rows_out']} records of {len(index['classes'])} classes in "
                f"{len(index['files'])} files, {ledger['rows_rejected']} rejected"
            )
            leaks = leakage.lines_of(path.with_name("ledger.json"))
            lines[str(path)] = "; ".join([counts, *leaks])
    for path in sorted(_RUNS.glob("*/metrics.json")):
        lines[str(path)] = f"run {path.parent.name}: {_run_line(path)}"
    return lines


def _run_line(path: Path) -> str:
    """The accuracy of a run on val, from the first evaluation to the last and the best."""
    metrics = jsonl.read(path)
    first = metrics["first_evaluation"]
    last = metrics["last_evaluation"]
    figures = f"val top-1 {first['acc1']:.1f} % -> {last['acc1']:.1f} %"
    figures += f" (best {metrics['best']['acc1']:.1f} %)"
    epochs = counted(metrics["epochs"], "epoch")
    return f"{figures}, {epochs} in {progress.clock(metrics['seconds'])}"
