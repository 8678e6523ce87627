"""Fetch a demo corpus: recordings of five languages, with their alignments.

Prompts recorded by people come from Debian packages (no root, the machine's apt state stays as it
is).
"""

from __future__ import annotations

import argparse
from pathlib import Path

from millrace.common import cli
from millrace.speech.demo import corpus as demo_corpus
from millrace.speech.demo.prompts import LANGUAGES


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
    seed_help = "of texts, order, lengths and ASR errors (default %(default)s)"
    add("--seed", type=int, default=42, help=seed_help)
    languages = sorted(LANGUAGES)
    add("--languages", nargs="+", choices=languages, default=languages, help="default: all five")
    add(
        "--threads",
        type=cli.positive_int,
        default=2,
        help="countries at a time (default %(default)s)",
    )
    return parser


@cli.step(make_parser)
def main(args: argparse.Namespace) -> None:
    where = (args.countries_root, args.index)
    demo_corpus.fetch(*where, args.seed, args.languages, args.threads)


if __name__ == "__main__":
    raise SystemExit(main())
