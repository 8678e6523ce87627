"""The jobs of the image lane and what they have made: for `millrace status` and the end of a
run."""

from __future__ import annotations

from pathlib import Path

from millrace.common import jsonl
from millrace.common.workflow.status import partition_files
from millrace.image.inputs import INDEX

PAGES = ["results/image/report/readers.html"]


def steps() -> list[tuple[str, str, dict[str, list[str]] | None]]:
    """Name, output and jobs of each step, over the partitions of the last parse."""
    groups = partition_files("image")
    partitions = {name: files for of in groups.values() for name, files in of.items()}
    splits = {split: [path for (path,) in of.values()] for split, of in groups.items()}
    return [
        ("create_records", "results/image/records/partitions/{}.json", partitions),
        ("merge_records", INDEX.format(split="{}"), splits),
        ("train_active", "results/image/runs/{}/metrics.json", None),
    ]


def facts() -> dict[str, str]:
    """Records, files and rejects of each split."""
    lines = {}
    for split in partition_files("image"):
        path = Path(INDEX.format(split=split))
        if path.is_file():
            index, ledger = jsonl.read(path), jsonl.read(path.with_name("ledger.json"))
            lines[str(path)] = (
                f"{split}: {ledger['rows_out']} records of {len(index['classes'])} classes in "
                f"{len(index['files'])} files, {ledger['rows_rejected']} rejected"
            )
    return lines
