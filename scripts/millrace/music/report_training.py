"""Report version matching for people: coverage of the splits, figures of the runs."""

from __future__ import annotations

import argparse
from pathlib import Path

from millrace.common import atomic, cli, jsonl


def make_parser() -> argparse.ArgumentParser:
    parser = cli.parser(__doc__, __spec__)
    add = parser.add_argument
    add("--coverage", type=Path, required=True, help="coverage of the index (JSON)")
    add("--figures", type=Path, nargs="*", default=[], help="test.json of each run, in its folder")
    add("--output", required=True, help="output: one page (HTML)")
    return parser


@cli.step(make_parser)
def main(args: argparse.Namespace) -> None:
    from millrace.music.report import matching

    atomic.write_text(args.output, matching.render(jsonl.read(args.coverage), args.figures))
    cli.log.info("%s: %d runs", args.output, len(args.figures))


if __name__ == "__main__":
    raise SystemExit(main())
