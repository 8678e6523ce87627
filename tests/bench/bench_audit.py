"""The audit against loaders whose answer is known: mutants by hand, and random ones from a grammar.

`python -m tests.bench.bench_audit --mutants` runs each under every start method, three times;
`--random` runs 200 correct loaders and 15 x 20 with one bug. Prints tables; `--out` writes all as JSON.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import tempfile
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from tests.audit import grammar
from tests.audit.mutants import METHODS, files, table
from tests.audit.running import audits

CHUNK = 12
Jobs = dict[str, tuple[str, list[str]]]  # name: (a world, the command's options)


def run_all(jobs: Jobs, processes: int) -> dict[str, dict]:
    """Audit all, several loaders one after the other in a process."""
    chunks = []
    for world in sorted({world for world, _ in jobs.values()}):
        names = [name for name in jobs if jobs[name][0] == world]
        parts = [names[at : at + CHUNK] for at in range(0, len(names), CHUNK)]
        chunks += [({name: jobs[name][1] for name in part}, world) for part in parts]
    results: dict[str, dict] = {}
    with ThreadPoolExecutor(processes) as pool:
        for part in pool.map(lambda chunk: audits(*chunk), chunks):
            results |= part
            print(f"{len(results)} of {len(jobs)} audits", flush=True)
    return results


def mutants(folder: str, pattern: str, methods: list[str], repeats: int, processes: int) -> dict:
    """Every case under each of its start methods, `repeats` times: wrong verdicts, and those that changed."""
    files.write(Path(folder))
    cases = {name: case for name, case in table().items() if pattern in name}
    jobs = {
        f"{name}|{method}|{repeat}": (case.within, [*case.argv(folder), "--start-method", method])
        for name, case in cases.items()
        for method in case.methods
        if method in methods
        for repeat in range(repeats)
    }
    results = run_all(jobs, processes)
    wrong, seen, verdicts = [], defaultdict(set), defaultdict(dict)
    for job, result in results.items():
        name, method, _ = job.split("|")
        seen[name, method].add(tuple(sorted(failing(result))))
        verdicts[name][method] = result["entries"].get(cases[name].entry, {}).get("verdict", "-")
        wrong += [f"{job}: {message}"] if (message := cases[name].judge(result)) else []
    unstable = [key for key, fails in seen.items() if len(fails) > 1]
    print("| entry | loader | expected | verdict |", "|---|---|---|---|", sep="\n")
    for name, case in cases.items():
        said = ", ".join(f"{method} {verdict}" for method, verdict in verdicts[name].items())
        said = said if len(set(verdicts[name].values())) > 1 else next(iter(verdicts[name].values()))
        print(f"| {case.entry} | {case.name} | {'fail' if case.fails else 'no fail'} | {said} |")
    print("wrong:", *wrong, "not the same in each repeat:", *unstable, sep="\n  ")
    return {"wrong": wrong, "unstable": unstable, "results": results}


def drawn(folder: str, entries: list[str], loaders: int, each: int, processes: int) -> dict:
    """Correct loaders, and for every entry `each` loaders with its bug: who fails in what."""
    grammar.write(Path(folder))
    jobs = {
        f"{entry}|{seed}": ("shm" if entry == "DP15" else "", grammar.options(seed, entry, folder))
        for entry in ["", *entries]
        for seed in (range(1000, 1000 + each) if entry else range(loaders))
    }
    results = run_all(jobs, processes)
    rows, wrong = {}, []
    print(
        "| bug | loaders | caught | other entries fail | not decidable |", "|---|---|---|---|---|", sep="\n"
    )
    for entry in ["", *entries]:
        group = {job: result for job, result in results.items() if job.startswith(f"{entry}|")}
        fails = {job: failing(result) for job, result in group.items()}
        row = {"loaders": len(group), "caught": sum(entry in each for each in fails.values())}
        row["others"] = sum(bool(each - {entry}) for each in fails.values())
        row |= Counter(said["verdict"] for result in group.values() for said in result["entries"].values())
        decided = sum(row.get(verdict, 0) for verdict in ("pass", "fail", "not decidable"))
        share = row.get("not decidable", 0) / max(decided, 1)
        print(f"| {entry or 'none'} | {len(group)} | {row['caught']} | {row['others']} | {share:.1%} |")
        rows[entry] = row
        for job in (job for job, each in fails.items() if each != {entry} - {""}):
            said = {name: group[job]["entries"].get(name) for name in fails[job] | ({entry} - {""})}
            wrong.append({"loader": job, "said": said, "ended": group[job]["ended"]})
    print(*map(json.dumps, wrong), sep="\n")
    return {"rows": rows, "wrong": wrong, "results": results}


def failing(result: dict) -> set[str]:
    """Entries that fail, but for `end`: that a bug raises or dies is part of it."""
    return {
        entry for entry, said in result["entries"].items() if said["verdict"] == "fail" and entry != "end"
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
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    said: dict = {"torch": torch.__version__, "python": platform.python_version()}
    with tempfile.TemporaryDirectory() as folder:
        if args.mutants:
            said["mutants"] = mutants(
                f"{folder}/files", args.pattern, args.methods, args.repeats, args.processes
            )
        if args.random:
            said["random"] = drawn(f"{folder}/drawn", args.entries, args.loaders, args.each, args.processes)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    said["cpu_minutes"] = round((used.ru_utime + used.ru_stime) / 60, 1)
    print(f"torch {said['torch']}, Python {said['python']}, {said['cpu_minutes']} CPU minutes")
    if args.out:
        args.out.write_text(json.dumps(said, indent=1))


if __name__ == "__main__":
    main()
