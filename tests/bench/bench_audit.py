"""The audit against loaders whose answer is known: mutants by hand, and random ones from a grammar.

`python -m tests.bench.bench_audit --mutants` runs each under every start method, three times;
`--random` runs 200 correct loaders and 15 x 20 with one bug. Prints tables. `--log` keeps each
result, a line of JSON each, and what it has is not run again; `--minutes` ends before all have run.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import tempfile
import time
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from tests.audit import grammar
from tests.audit.mutants import METHODS, files, table
from tests.audit.running import audits

CHUNK = 6
PATIENT, SLOW = (
    ["--timeout", "240"],
    ("DP9", "DP15"),
)  # the machine may be busy; they read on to the end
Jobs = dict[str, tuple[str, list[str]]]  # name: (a world, the command's options)


class Log:
    """Results of a run that may be ended and taken up again; without a path they are not kept."""

    def __init__(self, path: Path | None, minutes: float) -> None:
        self.path, self.until, self.results = path, time.monotonic() + 60 * minutes, {}
        for line in path.read_text().splitlines() if path and path.exists() else ():
            self.results |= json.loads(line)

    def run(self, jobs: Jobs, processes: int) -> dict[str, dict]:
        """Audit those that are not known, several loaders one after the other in a process."""
        waiting = [name for name in jobs if name not in self.results]
        chunks = []
        for world in sorted({jobs[name][0] for name in waiting}):
            names = [name for name in waiting if jobs[name][0] == world]
            chunks += [(world, names[at : at + CHUNK]) for at in range(0, len(names), CHUNK)]
        chunks.sort(key=lambda chunk: waiting.index(chunk[1][0]))
        with ThreadPoolExecutor(processes) as pool:
            for _ in pool.map(lambda chunk: self._audit(jobs, *chunk), chunks):
                print(
                    f"{sum(name in self.results for name in jobs)} of {len(jobs)} audits",
                    flush=True,
                )
        return {name: self.results[name] for name in jobs if name in self.results}

    def _audit(self, jobs: Jobs, world: str, names: list[str]) -> None:
        if time.monotonic() > self.until:
            return
        results = audits({name: jobs[name][1] for name in names}, world)
        self.results |= results
        if self.path:
            with self.path.open("a") as file:
                file.writelines(
                    json.dumps({name: result}) + "\n" for name, result in results.items()
                )


def mutants(
    folder: str, pattern: str, methods: list[str], repeats: int, processes: int, log: Log
) -> None:
    """Every case under each of its start methods, `repeats` times: wrong verdicts, and those that
    changed."""
    files.write(Path(folder))
    cases = {name: case for name, case in table().items() if pattern in name}
    jobs = {
        f"{name}|{method}|{repeat}": (
            case.within,
            [*case.argv(folder), *PATIENT, "--start-method", method],
        )
        for name, case in cases.items()
        for method in case.methods
        if method in methods
        for repeat in range(repeats)
    }
    results = log.run(jobs, processes)
    wrong, seen, verdicts = [], defaultdict(set), defaultdict(dict)
    for job, result in results.items():
        name, method, _ = job.split("|")
        seen[name, method].add(tuple(sorted(failing(result))))
        verdicts[name][method] = result["entries"].get(cases[name].entry, {}).get("verdict", "-")
        wrong += [f"{job}: {message}"] if (message := cases[name].judge(result)) else []
    unstable = [key for key, fails in seen.items() if len(fails) > 1]
    print("| entry | loader | expected | verdict |", "|---|---|---|---|", sep="\n")
    for name, case in ((name, case) for name, case in cases.items() if name in verdicts):
        said = ", ".join(f"{method} {verdict}" for method, verdict in verdicts[name].items())
        said = (
            said if len(set(verdicts[name].values())) > 1 else next(iter(verdicts[name].values()))
        )
        print(f"| {case.entry} | {case.name} | {'fail' if case.fails else 'no fail'} | {said} |")
    print("wrong:", *wrong, "not the same in each repeat:", *unstable, sep="\n  ")
    bugs = sum(cases[name].fails for name in verdicts)
    print(f"{len(results)} audits of {bugs} bugs and {len(verdicts) - bugs} twins")


def drawn(
    folder: str, entries: list[str], loaders: int, each: int, processes: int, log: Log
) -> None:
    """Correct loaders, and for every entry `each` loaders with its bug: who fails in what."""
    grammar.write(Path(folder))
    # In rounds, so that a run that ends early has seen something of everything.
    rounds = [[(entry, 1000 + turn) for entry in entries] for turn in range(each)]
    for seed in range(loaders):
        rounds[seed % each].append(("", seed))
    jobs = {
        f"{entry}|{seed}": (
            "shm" if entry == "DP15" else "",
            grammar.options(seed, entry, folder) + ([] if entry in SLOW else PATIENT),
        )
        for turn in rounds
        for entry, seed in turn
    }
    results = log.run(jobs, processes)
    wrong = []
    print(
        "| bug | loaders | caught | other entries fail | not decidable |",
        "|---|---|---|---|---|",
        sep="\n",
    )
    for entry in ["", *entries]:
        group = {job: result for job, result in results.items() if job.startswith(f"{entry}|")}
        fails = {job: failing(result) for job, result in group.items()}
        caught = sum(entry in each for each in fails.values())
        others = sum(bool(each - {entry}) for each in fails.values())
        verdicts = Counter(
            said["verdict"] for result in group.values() for said in result["entries"].values()
        )
        open_ones = verdicts["not decidable"]
        share = open_ones / max(open_ones + verdicts["pass"] + verdicts["fail"], 1)
        print(f"| {entry or 'none'} | {len(group)} | {caught} | {others} | {share:.1%} |")
        for job in (job for job, each in fails.items() if each != {entry} - {""}):
            said = {name: group[job]["entries"].get(name) for name in fails[job] | ({entry} - {""})}
            wrong.append({"loader": job, "said": said, "ended": group[job]["ended"]})
    print(*map(json.dumps, wrong), sep="\n")


def failing(result: dict) -> set[str]:
    """Entries that fail, but for `end`: that a bug raises or dies is part of it."""
    return {
        entry
        for entry, said in result["entries"].items()
        if said["verdict"] == "fail" and entry != "end"
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mutants", action="store_true")
    parser.add_argument("--random", action="store_true")
    parser.add_argument("--pattern", default="", help="only mutants with this in their names")
    parser.add_argument("--methods", nargs="*", default=METHODS)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--entries", nargs="*", default=grammar.ENTRIES)
    parser.add_argument("--loaders", type=int, default=200)
    parser.add_argument("--each", type=int, default=20)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--log", type=Path, help="of one kind of run and one state of the audit")
    parser.add_argument("--minutes", type=float, default=600)
    args = parser.parse_args()
    log = Log(args.log, args.minutes)
    with tempfile.TemporaryDirectory() as folder:
        if args.mutants:
            mutants(
                f"{folder}/files", args.pattern, args.methods, args.repeats, args.processes, log
            )
        if args.random:
            drawn(f"{folder}/drawn", args.entries, args.loaders, args.each, args.processes, log)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    minutes = round((used.ru_utime + used.ru_stime) / 60, 1)
    print(f"torch {torch.__version__}, Python {platform.python_version()}, {minutes} CPU minutes")


if __name__ == "__main__":
    main()
