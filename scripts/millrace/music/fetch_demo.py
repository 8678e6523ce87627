"""Fetch the demo corpus of the music lane: free MIDI tunes, each rendered in several versions, as
features.

Tunes and soundfonts come from Debian packages (no root, the machine's apt state stays as it is).
"""

from __future__ import annotations

import argparse
from pathlib import Path

from millrace.common import cli
from millrace.music.demo import corpus


def make_parser() -> argparse.ArgumentParser:
    parser = cli.parser(__doc__, __spec__)
    add = parser.add_argument
    add("--root", type=Path, required=True, help="folder that gets h5/, mm/ and metadata/")
    add(
        "--index",
        type=Path,
        required=True,
        help="JSON file that describes the corpus; written last",
    )
    add("--seed", type=int, default=42, help="of tempi, keys and splits (default %(default)s)")
    add("--threads", type=cli.positive_int, default=2, help="tunes at a time (default %(default)s)")
    return parser


@cli.step(make_parser)
def main(args: argparse.Namespace) -> None:
    corpus.fetch(args.root, args.index, args.seed, args.threads)


if __name__ == "__main__":
    raise SystemExit(main())
