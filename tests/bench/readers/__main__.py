"""Measure our reader against the seed's, tarfile, webdataset and Lhotse on the same tars.

Interleaved runs, each in a process of its own; raw members with warm and cold page cache, and decoded padded
batches. The peers: pip install -r requirements-bench.txt. One that is missing is reported, not fatal.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from millrace.common import atomic, cli

KINDS = ("raw-warm", "raw-cold", "batches")


def make_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = cli.parser(__doc__, __spec__.name if __spec__ else None)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "--buckets", type=Path, help="bucket_config.json, or its folder: its first tars are read"
    )
    source.add_argument(
        "--make-tars", type=cli.positive_int, metavar="TARS", help="tars of 500 made-up clips instead"
    )
    parser.add_argument(
        "--longest", type=cli.positive_float, default=30.0, help="seconds of the longest made-up clip"
    )
    parser.add_argument("--output", type=Path, required=True, help="readers.json")
    parser.add_argument("--figure", type=Path, help="figure of the result (.svg or .png)")
    parser.add_argument(
        "--scratch", type=Path, help="where made-up tars and the peers' copies go (removed at the end)"
    )
    parser.add_argument(
        "--members", type=cli.positive_int, default=4000, help="about so many members are read"
    )
    parser.add_argument(
        "--workers", type=cli.positive_int, default=2, help="DataLoader workers of every reader"
    )
    parser.add_argument(
        "--decode-threads", type=cli.positive_int, default=1, help="threads in each of our workers"
    )
    parser.add_argument(
        "--batch-seconds", type=cli.positive_float, default=240.0, help="padded seconds of a batch"
    )
    parser.add_argument(
        "--kinds", nargs="+", choices=KINDS, default=KINDS, help="what is measured (default: all)"
    )
    parser.add_argument("--runs", type=cli.positive_int, default=5, help="interleaved runs of each reader")
    return parser


@cli.step
def main(argv: list[str] | None = None) -> None:
    args = make_parser().parse_args(argv)
    from tests.bench.readers import benchmark, corpus
    from tests.bench.readers import report as reader_report

    with tempfile.TemporaryDirectory(prefix="readers-", dir=args.scratch) as scratch:
        folder = args.buckets.parent if args.buckets and args.buckets.is_file() else args.buckets
        buckets = folder or corpus.make(Path(scratch) / "tars", args.make_tars, 500, longest=args.longest)
        setting = benchmark.Setting(
            str(buckets),
            corpus.load(buckets, args.members),
            Path(scratch),
            workers=args.workers,
            batch_seconds=args.batch_seconds,
            runs=args.runs,
            raw_members=args.members,
            decode_threads=args.decode_threads,
            kinds=tuple(kind.replace("-", " ") for kind in args.kinds),
        )
        with cli.Progress(benchmark.runs_of(setting), "runs", "readers") as progress:
            results, equal = benchmark.measure(setting, progress.advance)
    report = reader_report.report(setting, results, equal)
    atomic.write_json(args.output, report)
    if args.figure:
        reader_report.draw(report, args.figure)
    sys.stdout.write(reader_report.table(report) + "\n")


if __name__ == "__main__":
    raise SystemExit(main())
