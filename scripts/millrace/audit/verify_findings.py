"""Write the page of what an audit found, and let a run start unless it found what may not be.

Then exit with 1 and say what; refused.html, beside the page, shows it. Other choices need no other
audit.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from millrace.audit.report import gate
from millrace.audit.report.page import page
from millrace.common import atomic, cli, jsonl


def make_parser() -> argparse.ArgumentParser:
    parser = cli.parser(__doc__, __spec__)
    add = parser.add_argument
    add("--findings", help="findings.json of check_loader; without: nothing is refused")
    add("--refuse", default="all", help="entries that may not fail: all, none, or DP1,DP2,resume")
    add("--ignore", action="append", metavar="ENTRY=REASON", help="does not count, and why")
    add(
        "--page",
        required=True,
        type=Path,
        help="output: the page, one file that needs nothing else",
    )
    add("--accepted", required=True, help="output: the choices, and the verdicts by number")
    return parser


@cli.step(make_parser)
def main(args: argparse.Namespace) -> None:
    counts = {}
    reasons = gate.typed_reasons(args.ignore)
    refused = args.page.with_name("refused.html")
    text = "<p>Not audited: audit.refuse is none.</p>\n"
    if args.findings:
        document = gate.with_reasons(jsonl.read(args.findings), reasons)
        counts = document["counts"]
        text = page(document)
        atomic.write_text(refused, text)
        gate.check(document, args.refuse, str(refused))
    refused.unlink(missing_ok=True)
    atomic.write_text(args.page, text)
    atomic.write_json(args.accepted, {"refuse": args.refuse, "ignore": reasons, "counts": counts})


if __name__ == "__main__":
    raise SystemExit(main())
