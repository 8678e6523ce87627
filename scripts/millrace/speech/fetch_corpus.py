"""Fetch a demo corpus: recordings of five languages, with their alignments.

Prompts recorded by people come from Debian packages (no root, the machine's apt state stays as it
is).
"""

from __future__ import annotations

import argparse
from pathlib import Path

from millrace.common import cli
from millrace.speech.demo import corpus as demo_corpus


def make_parser() -> argparse.ArgumentParser:
    parser = cli.parser(__doc__, __spec__)
    add = parser.add_argument
    add("--countries-root", type=Path, required=True, help="folder that gets one folder a country")
    add(
        "--index",
        type=Path,
        required=True,
        help="JSON file that describes the corpus; written last",
    )
    return parser


@cli.step(make_parser)
def main(args: argparse.Namespace) -> None:
    demo_corpus.fetch(args.countries_root, args.index)


if __name__ == "__main__":
    raise SystemExit(main())
