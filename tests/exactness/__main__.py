"""Run plans on loaders, and write what became of the samples: a table, JSON, a page."""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path

from tests.exactness import adapters
from tests.exactness.plans import COLUMNS, Plan


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m tests.exactness", description=__doc__)
    parser.add_argument("--library", nargs="+", choices=adapters.NAMES, default=adapters.NAMES)
    parser.add_argument("--plans", type=int, default=1000, help="random plans, of all columns")
    parser.add_argument("--columns", nargs="+", choices=COLUMNS, default=COLUMNS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--processes", type=int, default=8, help="the most workers of a launch, of all its ranks"
    )
    parser.add_argument("--seconds", type=float, default=math.inf, help="end a library after them")
    parser.add_argument("--plan", help='this plan alone, such as "12/4/1 1x2:1 1x2"')
    parser.add_argument("--json", type=Path, help="add the results to a file, by library")
    parser.add_argument("--page", type=Path, help="write the tables of --json into a page")
    return parser


def main() -> int:
    # Workers that are spawned import this module too, and need no torch.
    from tests.exactness import suite
    from tests.exactness.page import write_page

    args = make_parser().parse_args()
    for name in args.library:
        try:
            adapter = adapters.load(name)
        except ImportError as error:
            print(f"{name}: not installed ({error})")
            continue
        if args.plan:
            print(suite.shown(adapter, Plan.parse(args.plan), args.seed))
            continue
        if args.page and not args.plans:
            continue
        columns = tuple(args.columns)
        draw = suite.Draw(args.plans, args.seed, columns, args.processes, args.seconds)
        result = suite.judge(name, adapter, draw)
        print(suite.line(result), flush=True)
        if args.json:
            suite.save(args.json, result)
    if args.page:
        write_page(args.page, json.loads(args.json.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
