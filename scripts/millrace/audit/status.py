"""The jobs of the audit lane and what they have found: for `millrace status` and the end of a
run."""

from __future__ import annotations

from pathlib import Path

from millrace.common import jsonl
from millrace.common.workflow.runs import ACCEPTED, FINDINGS


def steps() -> list[tuple[str, str, dict[str, list]]]:
    """Name, output and jobs of each step: those jobs are known that have begun."""
    outputs = {"check_loader": FINDINGS, "verify_findings": ACCEPTED}
    steps = []
    for step, output in outputs.items():
        logs = sorted(Path(f"logs/audit/{step}").glob("*/*.log"))
        jobs: dict[str, list] = {f"{log.parent.name}/{log.stem}": [] for log in logs}
        steps.append((step, output.replace("{lane}/{run}", "{}"), jobs))
    return steps


def pages() -> list[str]:
    """The pages for people: none beside those of the runs."""
    return []


def facts() -> dict[str, str]:
    """The verdicts on each loader."""
    lines = {}
    for path in sorted(Path("results/audit").glob("*/*/accepted.json")):
        verdicts = jsonl.read(path)["counts"]
        counts = [f"{count} {verdict}" for verdict, count in verdicts.items() if count]
        lane, run = path.parts[-3:-1]
        lines[str(path)] = f"loader of {lane} {run}: {', '.join(counts) or 'not audited'}"
    return lines
