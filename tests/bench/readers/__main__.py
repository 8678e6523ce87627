"""Measure our reader against the original script's, tarfile, webdataset and Lhotse Shar on the same
tars.

python -m tests.bench.readers --make-tars 12 --members 6000 --runs 5

Interleaved runs, each in a process of its own: raw members with warm and cold page cache, and
decoded padded batches. The peers: pip install -r requirements-bench.txt. One that is missing is
reported, not fatal.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from millrace.common import cli

KINDS = ("raw-warm", "raw-cold", "batches")


def make_parser() -> argparse.ArgumentParser:
    parser = cli.parser(__doc__, __spec__)
    source = parser.add_mutually_exclusive_group(required=True).add_argument
    source(
        "--buckets", type=Path, help="bucket_config.json, or its folder: its first tars are read"
    )
    source(
        "--make-tars",
        type=cli.positive_int,
        metavar="TARS",
        help="tars of 500 made-up clips instead",
    )
    add = parser.add_argument
    add(
        "--scratch",
        type=Path,
        help="where made-up tars and the peers' copies go (removed at the end)",
    )
    add(
        "--members",
        type=cli.positive_int,
        default=4000,
        help="about so many members are read (4000)",
    )
    add(
        "--workers", type=cli.positive_int, default=2, help="DataLoader workers of every reader (2)"
    )
    add(
        "--batch-seconds",
        type=cli.positive_float,
        default=240.0,
        help="padded seconds of a batch (240)",
    )
    add("--kinds", nargs="+", choices=KINDS, default=KINDS, help="what is measured (all)")
    add("--runs", type=cli.positive_int, default=5, help="interleaved runs of each reader (5)")
    return parser


@cli.step(make_parser)
def main(args: argparse.Namespace) -> None:
    from tests.bench.readers import benchmark, corpus, report

    with tempfile.TemporaryDirectory(prefix="readers-", dir=args.scratch) as scratch:
        folder, kinds = Path(scratch), tuple(kind.replace("-", " ") for kind in args.kinds)
        buckets = args.buckets or corpus.make(folder / "tars", args.make_tars, 500)
        members = corpus.load(buckets, args.members)
        names = ("workers", "batch_seconds", "runs")
        options = {name: getattr(args, name) for name in names} | {"raw_members": args.members}
        setting = benchmark.Setting(buckets, members, folder, kinds=kinds, **options)
        with cli.Progress(setting.total_runs, "runs", "readers") as progress:
            results, equal = benchmark.measure(setting, progress.advance)
    sys.stdout.write(report.table(setting, results, equal) + "\n")


if __name__ == "__main__":
    raise SystemExit(main())
