"""Audits many loaders with one start of torch, in a smaller world if they ask for it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace

from millrace.audit.check_loader import make_options, make_parser
from millrace.audit.checks.findings import VERDICTS, Finding, judge, load
from millrace.audit.checks.run import audit
from millrace.audit.runner.guard import Guard
from millrace.audit.runner.probes import Result
from millrace.audit.runner.target import Options, Rank, Target

WORLDS = {
    "": "",
    "shm": "mount -t tmpfs -o size=64m tmpfs /dev/shm && ",
    "files": "ulimit -S -n 256 && ",
}


def audits(jobs: Mapping[str, list[str]], within: str = "") -> dict[str, dict]:
    """For each job (a name and the command's options): verdicts by entry, probes that failed,
    seconds."""
    inside = ["sh", "-c", f'{WORLDS[within]}exec "$@"', "sh", sys.executable, "-m", __name__]
    command = ["unshare", "--mount", *inside] if within == "shm" else inside
    run = subprocess.run(
        command, input=json.dumps(jobs), stdout=subprocess.PIPE, text=True, check=True
    )
    return json.loads(run.stdout)


def run(guard: Guard, argv: list[str]) -> tuple[dict[str, Result], list[Finding]]:
    """Results and findings of an audit with the command's options; the worst findings first."""
    args = make_parser().parse_args(argv)
    only = list(filter(None, args.only.split(",")))
    results, findings = audit(make_options(args), only, guard)
    findings.sort(key=lambda finding: VERDICTS.index(finding.verdict), reverse=True)
    return results, findings


def judged(entry: str, **seen: list[dict]) -> list[Finding]:
    """What is said of an entry, of what the probes saw in each rank."""
    checks = [check for check in load([entry]) if set(check.probes) <= {*seen}]
    results = {name: Result("ok", data, {}, 0.0) for name, data in seen.items()}
    return judge(results, checks)


def told(entry: str, **seen: list[dict]) -> tuple[str, str]:
    """Verdict and cause of the only finding on an entry."""
    [finding] = judged(entry, **seen)
    return finding.verdict, finding.cause


def verdict_on(entry: str, **seen: list[dict]) -> str:
    """The verdict of the only finding on an entry."""
    return told(entry, **seen)[0]


def target_of(loader: object, val: object = None, **options: object) -> SimpleNamespace:
    """What probes are given: these loaders, neither a model nor a loop, and options."""
    return SimpleNamespace(
        loader=lambda: loader,
        val_loader=lambda: val,
        model=lambda: None,
        loop=lambda: None,
        options=Options("numpy.own:loader", **options),
    )


def probed(probe: Callable, target: Target, folder: Path) -> list[dict]:
    """What a probe saw in this process, where it has a minute."""
    rank = Rank(0, 1, folder, time.monotonic() + 60)
    return [json.loads(json.dumps(probe(target, rank)))]


def audited(guard: Guard, argv: list[str]) -> dict:
    """Of one loader; for each entry the worst of what was said."""
    began = time.monotonic()
    results, findings = run(guard, argv)
    entries: dict[str, dict] = {}
    for finding in findings:
        evidence = str(finding.evidence)[:400] if finding.evidence else ""
        worst = {"verdict": finding.verdict, "causes": [], "evidence": evidence}
        entry = entries.setdefault(finding.entry, worst)
        entry["causes"].append(finding.cause or finding.needs)
    ended = {
        name: result.error.get("text", "")
        for name, result in results.items()
        if result.status != "ok"
    }
    return {"entries": entries, "ended": ended, "seconds": round(time.monotonic() - began, 2)}


if __name__ == "__main__":
    with Guard() as guard:
        json.dump(
            {name: audited(guard, argv) for name, argv in json.load(sys.stdin).items()}, sys.stdout
        )
