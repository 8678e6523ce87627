"""What steps used and what their rules ask for, as a table, out of the benchmark files of a run.

    snakemake --benchmark-extended ...
    python -m tests.bench.resources /data/small /data/large

Each argument is a folder where the workflow ran; without --benchmark-extended input and request are
missing. A step's row holds the largest value of any of its jobs.
"""

from __future__ import annotations

import ast
import csv
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

COLUMNS = ("Step", "Input, MB", "Memory, MB", "asked for", "Seconds", "minutes asked for")


def rows(folder: Path) -> Iterator[tuple[str, float, float, object, float, object]]:
    """A row for each step: input, memory used and asked for, time used and asked for."""
    for step in sorted(folder.glob("benchmarks/*/*")):
        jobs = []
        for path in step.glob("*.tsv"):
            with open(path, newline="") as file:
                job = list(csv.DictReader(file, delimiter="\t"))[-1]
            asked, sizes = (
                ast.literal_eval(job.get(name) or "{}") for name in ("resources", "input_size_mb")
            )
            used = (float(job[name]) if job[name] != "NA" else 0.0 for name in ("max_rss", "s"))
            jobs.append(
                (sum(sizes.values()), *used, asked.get("mem_mb", 0), asked.get("runtime", 0))
            )
        if jobs:
            size, memory, seconds, mem_mb, runtime = map(max, zip(*jobs, strict=True))
            yield (
                f"{step.parent.name}_{step.name}",
                size,
                memory,
                mem_mb or "",
                seconds,
                runtime or "",
            )


def table(folders: Iterable[Path]) -> str:
    """Markdown; steps side by side, by size of their input."""
    lines = sorted(row for folder in folders for row in rows(folder))
    cells = [
        (f"`{step}`", f"{size:,.2f}", f"{memory:,.0f}", mem_mb, f"{seconds:,.0f}", runtime)
        for step, size, memory, mem_mb, seconds, runtime in lines
    ]
    head = [COLUMNS, ("---", *["---:"] * (len(COLUMNS) - 1))]
    return "\n".join("| " + " | ".join(map(str, row)) + " |" for row in [*head, *cells])


if __name__ == "__main__":
    print(table(map(Path, sys.argv[1:])))
