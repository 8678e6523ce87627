"""The jobs of the image lane and what they have made: for `millrace status` and the end of a run."""

from __future__ import annotations

from pathlib import Path

from millrace.common import jsonl
from millrace.common.workflow import sources
from millrace.image.inputs import INDEX, PARTITIONS

PAGES = ["results/image/report/readers.html"]


def steps() -> list[tuple[str, str, dict[str, list[str]]]]:
    """Name, output and jobs of each step, over the partitions of the last parse."""
    groups = sources.load(PARTITIONS).partitions
    partitions = {name: [f"{PARTITIONS}/{name}.json"] for names in groups.values() for name in names}
    splits = {split: [partitions[name][0] for name in names] for split, names in groups.items()}
    begun = Path("logs/image/train_active").glob("*.log")  # of training no other jobs are known
    return [
        ("create_records", "results/image/records/partitions/{}.json", partitions),
        ("merge_records", INDEX.format(split="{}"), splits),
        ("train_active", "results/image/runs/{}/metrics.json", {log.stem: [] for log in begun}),
    ]


def facts() -> dict[str, str]:
    """Records, files and rejects of each split."""
    lines = {}
    for split in sources.load(PARTITIONS).partitions:
        path = Path(INDEX.format(split=split))
        if path.is_file():
            index, ledger = jsonl.read(path), jsonl.read(path.with_name("ledger.json"))
            lines[str(path)] = (
                f"{split}: {ledger['rows_out']} records of {len(index['classes'])} classes in "
                f"{len(index['files'])} files, {ledger['rows_rejected']} rejected"
            )
    return lines
