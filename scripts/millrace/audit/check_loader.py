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
from millrace.audit.report import document, gate, sarif, terminal
from millrace.audit.runner.target import START_METHODS, Options, expectation, parse_args
from millrace.common import atomic, cli
from millrace.common.errors import MillraceError


def make_parser() -> argparse.ArgumentParser:
    parser = cli.parser(__doc__, __spec__)
    add = parser.add_argument
    add(
        "--loader",
        required=True,
        help="module:factory or file.py:factory: a DataLoader, or what makes it or gives batches",
    )
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
    add("--start-method", default="", choices=START_METHODS, help="of workers")
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
    add("--json", type=Path, help="output: what was found")
    add("--sarif", type=Path, help="output: the fails, for code scanning")
    return parser


@cli.step(make_parser)
def main(args: argparse.Namespace) -> int:
    try:
        only = entries.names(filter(None, args.only.split(",")))
        ignored = gate.typed_reasons(args.ignore)
        options = make_options(args)
        sys.path.insert(0, str(Path.cwd()))
        probes, findings = audit(options, only)
    except MillraceError as error:
        cli.log.error("%s", error)
        return 2  # as argparse does; 1 is a bug of the loader

    command = ["python", "-m", "millrace.audit.check_loader", *args.typed]
    run = document.Run(args.loader, shlex.join(command), options.timeout, probes, only, ignored)
    report = document.document(findings, run)
    if args.json:
        # JSON has no NaN.
        plain = json.loads(json.dumps(report), parse_constant=lambda name: None)
        atomic.write_text(args.json, json.dumps(plain, indent=2, allow_nan=False) + "\n")
    if args.sarif:
        text = json.dumps(sarif.sarif(report), indent=2)
        atomic.write_text(args.sarif, text + "\n")
    print(terminal.text(report))
    if args.exit_zero:
        return 0
    return document.exit_code(report, args.strict)


def make_options(args: argparse.Namespace) -> Options:
    """What of the command line the probes need."""
    known = {field.name for field in fields(Options)} & vars(args).keys()
    given = {name: getattr(args, name) for name in known}
    given["args"] = parse_args(args.arg)
    given["ranks"] = args.ranks or 2
    given["together"] = args.ranks is not None
    return Options(**given)


if __name__ == "__main__":
    raise SystemExit(main())
