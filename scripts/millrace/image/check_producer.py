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
    parser = cli.parser(__doc__, __spec__.name if __spec__ else None)
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
    wanted, made = pointers.wanted(), pointers.made()
    slow = f"slow {wanted.slow} of top {wanted.top}" if wanted else ""
    for side, pointer in (("trainer", slow), ("producer", f"fast {made.fast}" if made else "")):
        beat = pointers.beat(side)
        state = "has never started"
        if beat is not None:
            is_alive = not beat.is_working or pointers.counting(side, seconds)
            no_sign = "" if is_alive else f"no sign of life for {seconds:g} s; was: "
            state = (
                f"{pointer or 'no pointers'}; {beat.where}: {no_sign}{pointers.beat(side).activity}"
            )
            if made and side == "producer" and made.is_done:
                state += "; all epochs are made"
        remedy = (
            "" if beat and beat.is_working and is_alive else f". Start it: {pointers.command(side)}"
        )
        yield f"{side}: {state}{remedy}"
    whole = epochs.whole(folder)
    for epoch, mark in whole.items():
        size = sum(file.stat().st_size for file in epochs.folder_of(folder, epoch).iterdir())
        facts = f"{mark['records']} records, {size / 1e9:.3g} GB, pool {mark['pool']}, seed {mark['seed']}"
        yield f"{epochs.folder_of(folder, epoch)}: whole, {facts}"
    if not whole:
        yield f"{folder}: no epoch lies whole beside train/"


@cli.step
def main(argv: list[str] | None = None) -> None:
    args = make_parser().parse_args(cli.hyphenated(argv))
    text = "\n".join(_lines(args.folder, args.sentry_dir, args.seconds))
    print(text)
    if args.output:
        atomic.write_text(args.output, f"{text}\n")


if __name__ == "__main__":
    raise SystemExit(main())
