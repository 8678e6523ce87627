"""Random plans on one library: how many came to which verdict, and the shortest that fails."""

from __future__ import annotations

import importlib.metadata
import json
import math
import time
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from tests.exactness.adapters import Adapter
from tests.exactness.judge import Undisturbed, Verdict, verdict_of
from tests.exactness.page import told
from tests.exactness.plans import COLUMNS, Plan, random_plans
from tests.exactness.runs import Data, run
from tests.exactness.shrink import shortest


class Bench:
    """An adapter with its data and undisturbed runs."""

    def __init__(self, adapter: Adapter, seed: int = 0) -> None:
        self.adapter, self.seed = adapter, seed
        self.data = Data(adapter)
        self.undisturbed = Undisturbed(adapter, self.data.of, seed)

    def judged(self, plan: Plan) -> Verdict:
        if not self.adapter.ABOUT.has_state:
            return Verdict("no state")
        outcome = run(self.adapter, self.data.of(plan.samples), plan, self.seed)
        return verdict_of(plan, outcome, self.undisturbed)

    def is_inside(self, plan: Plan) -> bool:
        """Whether all its checkpoints lie inside an epoch, with the same ranks."""
        if plan.column == "ranks" or not self.adapter.ABOUT.has_state:
            return False
        return plan.stops_inside(self.undisturbed.steps(plan))

    def shortest(self, plan: Plan, verdict: Verdict) -> Plan:
        """The shortest plan with the same verdict."""
        return shortest(plan, lambda simpler: self.judged(simpler).name == verdict.name)


class Draw(NamedTuple):
    """Which random plans are run: `count` of a seed, as many of each column.

    `processes`: the most workers of a launch, of all its ranks. After so many `seconds` it ends
    with the plans that were run up to then, the first ones.
    """

    count: int
    seed: int = 0
    columns: tuple[str, ...] = COLUMNS
    processes: int = 8
    seconds: float = math.inf


def judge(name: str, adapter: Adapter, draw: Draw) -> dict[str, Any]:
    """Run random plans; the record that `--json` keeps."""
    began = time.monotonic()
    bench = Bench(adapter, draw.seed)
    counts = {column: Counter() for column in draw.columns}
    inside = {column: Counter() for column in draw.columns}
    samples = Counter(lost=0, repeated=0)
    smallest = {}
    processes = min(draw.processes, adapter.ABOUT.most_processes)
    done = 0
    for plan in random_plans(draw.count, draw.seed, draw.columns, processes):
        if time.monotonic() - began > draw.seconds and done % len(draw.columns) == 0:
            break
        done += 1
        verdict = bench.judged(plan)
        counts[plan.column][verdict.name] += 1
        if bench.is_inside(plan):
            inside[plan.column][verdict.name] += 1
        samples.update(lost=verdict.lost, repeated=verdict.repeated)
        key = (plan.column, verdict.name)
        if key not in smallest or plan.size < smallest[key][0].size:
            smallest[key] = (plan, verdict)

    packages = adapter.ABOUT.packages
    return {
        "library": name,
        "versions": {package: importlib.metadata.version(package) for package in packages},
        "plans": done,
        "seed": draw.seed,
        "processes": processes,
        "seconds": round(time.monotonic() - began),
        "counts": {column: dict(counts[column]) for column in draw.columns},
        "inside": {column: dict(inside[column]) for column in draw.columns},
        "samples": dict(samples),
        "failing": _failing(bench, smallest),
    }


def _failing(
    bench: Bench, smallest: dict[tuple[str, str], tuple[Plan, Verdict]]
) -> list[dict[str, str]]:
    """For each column and verdict the shortest plan, and what was seen."""
    lines = []
    for (column, name), (plan, verdict) in sorted(smallest.items()):
        if name in {"exact", "no state"}:
            continue
        shorter = bench.shortest(plan, verdict)
        words = bench.judged(shorter).words
        lines.append({"column": column, "verdict": name, "plan": str(shorter), "words": words})
    return lines


def line(result: dict[str, Any]) -> str:
    """A result in a few lines of text."""
    lines = [f"{result['library']} {result['versions']}: {result['seconds']} s"]
    for column, counts in result["counts"].items():
        lines.append(f"  {column}: {told(counts)}")
        lines.append(f"    stopped inside epochs: {told(result['inside'][column])}")
    for failing in result["failing"]:
        lines.append("  {column} {verdict}: {plan}: {words}".format(**failing))
    return "\n".join(lines)


def shown(adapter: Adapter, plan: Plan, seed: int) -> str:
    """The verdict of one plan, and its batches."""
    bench = Bench(adapter, seed)
    outcome = run(adapter, bench.data.of(plan.samples), plan, seed)
    verdict = bench.judged(plan)
    lines = [f"{plan}: {verdict.name} {verdict.words}"]
    for read in outcome.reads:
        lines.append(f"  launch {read.launch} rank {read.rank} epoch {read.epoch}: {read.ids}")
    return "\n".join(lines)


def save(path: Path, result: dict[str, Any]) -> None:
    """Put a result in the place of the library's last one."""
    results = json.loads(path.read_text()) if path.exists() else {}
    results[result["library"]] = result
    path.write_text(json.dumps(results, indent=1) + "\n")
