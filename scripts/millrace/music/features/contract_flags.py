"""The flags of what the model takes of features, the same in every step that reads tracks."""

from __future__ import annotations

import argparse

from millrace.common import cli
from millrace.music.features.track import Contract


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add --hop, --pool, --bins and --resample."""
    add = parser.add_argument
    add(
        "--hop",
        type=cli.positive_float,
        default=0.02,
        help="seconds a frame of files that do not say it",
    )
    add(
        "--pool",
        type=cli.positive_int,
        default=5,
        help="stored frames that make one frame of the model",
    )
    add("--bins", type=cli.positive_int, default=84, help="bins of a frame")
    add("--resample", action="store_true", help="admit hops of which no whole number makes a frame")


def contract(args: argparse.Namespace) -> Contract:
    """What these flags say that the model takes."""
    return Contract(args.bins, args.hop, args.pool, resample=args.resample)
