"""Run a data loader for a minute and name its silent bugs, with evidence and fix.

Takes anybody's loader as it is: a function that returns a DataLoader, or any iterable of batches.
It runs in processes of its own, on the CPU, and leaves nothing behind. Exit codes: 0, 1 a bug, 2
the loader cannot be loaded (torch is missing, a name leads nowhere), 3 it hung or died.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from dataclasses import fields
from pathlib import Path

from millrace.audit.checks import entries
from millrace.audit.checks.run import audit
from millrace.audit.report import document, gate, page, terminal
from millrace.audit.runner.target import Options, expectation, parse_args
from millrace.common import atomic, cli
from millrace.common.errors import MillraceError


def make_parser() -> argparse.ArgumentParser:
    parser = cli.parser(__doc__, __spec__.name if __spec__ else None)
    add = parser.add_argument
    first = parser.add_mutually_exclusive_group(required=True).add_argument
    first(
        "--loader",
        help="module:factory or file.py:factory: a DataLoader, or what makes it or gives batches",
    )
    first("--list", action="store_true", help="list what is looked for")
    first("--explain", metavar="ENTRY", help="symptom, cause and fix of an entry, such as DP5")
    first("--search", metavar="WORDS", help="entries that speak of these, such as worker_init_fn")
    add("--arg", action="append", default=[], metavar="KEY=VALUE", help="argument of the factories")
    add("--val-loader", default="", help="the loader of evaluation, named alike")
    add("--model", default="", help="module:factory of the model that is trained")
    add(
        "--loop",
        default="",
        help="module:function that takes the loader and trains for two epochs or more",
    )
    ranks = (
        "processes that train with it (default: 2, of which nobody has said that they train"
        " together)"
    )
    add("--ranks", type=cli.positive_int, help=ranks)
    add("--workers", type=cli.count, help="workers of the loader (default: its own, at most 2)")
    add("--epochs", type=cli.positive_int, default=2, help="epochs that are read")
    add(
        "--start-method", default="", choices=("", "fork", "spawn", "forkserver"), help="of workers"
    )
    add(
        "--expect",
        default="",
        type=expectation,
        help="of the inputs: 0-1, imagenet, mean,std or none",
    )
    add("--only", default="", help="entries, such as DP1,DP2,resume")
    add("--ignore", action="append", metavar="ENTRY=REASON", help="does not count, and why")
    add("--strict", action="store_true", help="what is not decidable counts as a fail")
    add("--exit-zero", action="store_true", help="exit with 0 whatever is found")
    add("--timeout", type=cli.positive_float, default=60.0, help="seconds for all")
    add(
        "--memory-mb",
        type=cli.count,
        default=0,
        help="most memory (default: 8 GiB or half of what is free)",
    )
    add("--out", type=Path, help="folder for findings.json and findings.html")
    add("--json", type=Path, help="output: what was found (default: in --out, if given)")
    return parser


@cli.step
def main(argv: list[str] | None = None) -> int:
    args = make_parser().parse_args(argv)
    if args.loader is None:
        said = entries.explain(args.explain) if args.explain else ""
        print(said or (entries.search(args.search) if args.search else entries.listing()))
        return 0
    try:
        only = [entries.get(name).name for name in filter(None, args.only.split(","))]
        ignored, values = gate.reasons(args.ignore), parse_args(args.arg)
        known = {field.name for field in fields(Options)} & vars(args).keys()
        given = {name: getattr(args, name) for name in known}
        given |= {"args": values, "together": args.ranks is not None, "ranks": args.ranks or 2}
        sys.path.insert(0, str(Path.cwd()))
        probes, findings = audit(Options(**given), only)
    except MillraceError as error:
        cli.log.error("%s", error)
        return 2  # as argparse does; 1 is a bug of the loader
    command = shlex.join(["python", "-m", "millrace.audit.check_loader", *(argv or sys.argv[1:])])
    context = {
        "loader": args.loader,
        "command": command,
        "probes": probes,
        "only": only,
        "ignored": ignored,
    }
    report = document.document(findings, context)
    if path := args.json or (args.out and args.out / "findings.json"):
        plain = json.loads(json.dumps(report), parse_constant=lambda name: None)  # JSON has no NaN
        atomic.write_text(path, json.dumps(plain, indent=2, allow_nan=False) + "\n")
    if args.out:
        atomic.write_text(args.out / "findings.html", page.page(report))
    print(terminal.text(report))
    return 0 if args.exit_zero else document.exit_code(report, args.strict)


if __name__ == "__main__":
    raise SystemExit(main())
