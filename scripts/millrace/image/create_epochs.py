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

from millrace.common import atomic, cli, settings
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
        "--memory",
        type=cli.positive_float,
        help="GB of a pool (default: four fifths of this machine's)",
    )
    add("--sentry-dir", help="folder of the pointers (default: sentry/ in --local-scratch-dir)")
    add(
        "--end-with-parent",
        action="store_true",
        help="end when the process ends that started this one",
    )
    add("--report", help="output, written last: what was made")
    settings.add_arguments(parser.add_argument_group("signs of life"), Times)
    return parser


@cli.step(make_parser, cli.hyphenated)
def main(args: argparse.Namespace) -> None:
    with _stopping(args.end_with_parent) as is_stopped:
        _make(args, is_stopped)


def _make(args: argparse.Namespace, is_stopped: Callable[[], bool]) -> None:
    from millrace.common.machine.memory import GB, host_memory
    from millrace.image.producer import production, quality
    from millrace.image.producer.shuffle import EpochMaker
    from millrace.image.records.record_set import RecordSet

    root = Path(args.local_scratch_dir)
    times = settings.from_args(Times, args)
    settings.check(times, "create_epochs")
    root.mkdir(parents=True, exist_ok=True)
    records = RecordSet.open(args.raw_data_dir, "train")
    if args.memory:
        memory = int(args.memory * GB)
    else:
        memory = host_memory() * 4 // 5
    pool = production.check_memory(records, args.shuffle_pool, memory)
    spread = quality.expected_spread(records, pool)
    cli.log.info("%s", spread.line(len(records)))
    locking = os.environ.get("HDF5_USE_FILE_LOCKING", "not set: HDF5 locks files that it writes")
    cli.log.info("HDF5_USE_FILE_LOCKING: %s", locking)

    with Producer(root, args.sentry_dir, times, _flags(args, pool), is_stopped) as side:
        production.check_disk(records, root, args.allowed_ahead, side.wanted())
        maker = EpochMaker(records, root, pool, args.seed)
        top = production.produce(maker, side, args.allowed_ahead)
    if args.report:
        marks = [maker.mark(epoch) for epoch in range(1, top)]
        atomic.write_json(args.report, {"epochs": marks, "expected_spread": spread._asdict()})


def _flags(args: argparse.Namespace, pool: int) -> list[str]:
    """What starts this producer again, from any place of the folder."""
    raw = os.path.relpath(args.raw_data_dir, args.local_scratch_dir)
    place = os.path.join("{folder}", raw).removesuffix("/.")
    return [
        f"--raw_data_dir={place}",
        "--local_scratch_dir={folder}",
        f"--shuffle_pool={pool}",
        f"--allowed_ahead={args.allowed_ahead}",
        f"--seed={args.seed}",
    ]


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
