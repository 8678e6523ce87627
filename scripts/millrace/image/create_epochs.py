"""Make the next epochs while one is trained: K record files at a time are shuffled into K new ones.

Reads train/ in --raw_data_dir, writes train_1/, train_2/, ... into --local_scratch_dir, where the
trainer reads them, and removes them when they are trained. Start it before or after the trainer, on
its node or on another, and again if it was killed: it goes on. It ends when all epochs are made; on
SIGTERM with code 75.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

from millrace.common import cli, settings
from millrace.image.producer.sentry import Producer, Times


def _pool(text: str) -> int:
    if text == "all":
        return 1 << 62
    return cli.positive_int(text)


def make_parser() -> argparse.ArgumentParser:
    parser = cli.parser(__doc__, __spec__)
    add = parser.add_argument
    add("--raw-data-dir", required=True, help="folder of train/, the converted records")
    add("--local-scratch-dir", required=True, help="folder of the epochs, as the trainer has it")
    add(
        "--shuffle-pool",
        type=_pool,
        default="10",
        help="files that are shuffled together, or `all`",
    )
    add(
        "--allowed-ahead",
        type=cli.count,
        default=1,
        help="epochs that may lie whole beyond the one in work",
    )
    add("--seed", type=cli.count, default=42, help="of the shuffle")
    add(
        "--end-with-parent",
        action="store_true",
        help="end when the process ends that started this one",
    )
    settings.add_arguments(parser.add_argument_group("signs of life"), Times)
    return parser


@cli.step(make_parser, cli.hyphenated)
def main(args: argparse.Namespace) -> None:
    from millrace.common.machine.memory import host_memory
    from millrace.image.producer import production
    from millrace.image.producer.shuffle import EpochMaker
    from millrace.image.records.record_set import RecordSet

    root = Path(args.local_scratch_dir)
    times = settings.from_args(Times, args)
    settings.check(times, "create_epochs")
    root.mkdir(parents=True, exist_ok=True)
    with _stopping(args.end_with_parent) as is_stopped:
        records = RecordSet.open(args.raw_data_dir, "train")
        pool = production.check_memory(records, args.shuffle_pool, host_memory() * 4 // 5)
        with Producer(root, times, is_stopped) as side:
            maker = EpochMaker(records, root, pool, args.seed)
            production.produce(maker, side, args.allowed_ahead)


@contextlib.contextmanager
def _stopping(end_with_parent: bool) -> Iterator[Callable[[], bool]]:
    """Gives what says whether SIGTERM has come, or the parent has ended."""
    stops: list[int] = []
    parent = os.getppid()

    def is_stopped() -> bool:
        if stops:
            return True
        return end_with_parent and os.getppid() != parent

    before = signal.signal(signal.SIGTERM, lambda number, _: stops.append(number))
    try:
        yield is_stopped
    finally:
        signal.signal(signal.SIGTERM, before)


if __name__ == "__main__":
    raise SystemExit(main())
