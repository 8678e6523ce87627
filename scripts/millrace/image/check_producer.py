"""Say where trainer and producer are: pointers, signs of life, epochs on disk; only reads.

By hand: python -m millrace.image.check_producer results/image/epochs/demo
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from millrace.common import atomic, cli
from millrace.image.producer import epochs
from millrace.image.producer.sentry import Pointers


def make_parser() -> argparse.ArgumentParser:
    parser = cli.parser(__doc__, __spec__)
    add = parser.add_argument
    add("folder", help="folder of the epochs: --local_scratch_dir of the producer")
    add("--sentry-dir", help="folder of the pointers (default: sentry/ in the folder)")
    add(
        "--seconds", type=cli.positive_float, default=3.0, help="how long to look for signs of life"
    )
    add("--output", help="write the lines into this file too")
    return parser


def _lines(folder: str, place: str | None, seconds: float) -> Iterator[str]:
    """A line for each side, with the command that starts it if it is not there, and one for each
    epoch."""
    pointers = Pointers(folder, place)
    wanted = pointers.wanted()
    made = pointers.made()
    slow = f"slow {wanted.slow} of top {wanted.top}" if wanted else ""
    yield _line(pointers, "trainer", slow, seconds)
    fast = f"fast {made.fast}" if made else ""
    is_done = made is not None and made.is_done
    yield _line(pointers, "producer", fast, seconds, "; all epochs are made" if is_done else "")

    whole = epochs.whole(folder)
    for epoch, mark in whole.items():
        place_of_epoch = epochs.folder_of(folder, epoch)
        size = sum(file.stat().st_size for file in place_of_epoch.iterdir())
        facts = f"{mark['records']} records, {size / 1e9:.3g} GB"
        yield f"{place_of_epoch}: whole, {facts}, pool {mark['pool']}, seed {mark['seed']}"
    if not whole:
        yield f"{folder}: no epoch lies whole beside train/"


def _line(pointers: Pointers, side: str, pointer: str, seconds: float, more: str = "") -> str:
    """Where a side is."""
    start = f". Start it: {pointers.command(side)}"
    beat = pointers.beat(side)
    if beat is None:
        return f"{side}: has never started{start}"

    state = f"{side}: {pointer or 'no pointers'}; {beat.where}: "
    if not beat.is_working:
        return f"{state}{beat.activity}{more}{start}"
    now = pointers.counting(side, seconds)
    if now is None:
        last = pointers.beat(side) or beat
        return f"{state}no sign of life for {seconds:g} s; was: {last.activity}{more}{start}"
    return f"{state}{now.activity}{more}"


@cli.step(make_parser, cli.hyphenated)
def main(args: argparse.Namespace) -> None:
    text = "\n".join(_lines(args.folder, args.sentry_dir, args.seconds))
    print(text)
    if args.output:
        atomic.write_text(args.output, f"{text}\n")


if __name__ == "__main__":
    raise SystemExit(main())
