"""Find samples of train that lie in test or validation too, whatever they are called.

Each split is a folder of audio, videos or images, webdataset tars, parquet or JSONL (NeMo's
manifests), or several of them. Samples are compared by their bytes; by what is decoded: sound by
fingerprints, whatever cut, codec, rate or level it has, pictures whatever format; by transcript
(four words or more) and duration (within 0.01 s); and by recording id.

A line is printed for each pair of samples. What is at t seconds in the first one is at t + the
offset in the second one. Confidence is the share of equal bits of the fingerprints where both sound
alike (unrelated sound: 0.5; copies: 0.8 and more), 1 less the mean difference of the pixels of
pictures, and 1 for equal bytes. docs/leaks.md says what is found and what is not.

Exit codes: 0 no pairs, 1 pairs, 2 a split that cannot be read.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from millrace.common import atomic, cli, extras
from millrace.common.errors import MillraceError

MOST_LINES = 50  # of pairs


def make_parser() -> argparse.ArgumentParser:
    parser = cli.parser(__doc__, __spec__)
    add = parser.add_argument
    add("--train", type=Path, nargs="+", metavar="PATH", required=True, help="what is trained on")
    add("--test", type=Path, nargs="+", metavar="PATH", default=[], help="what is tested on")
    add("--validation", type=Path, nargs="+", metavar="PATH", default=[], help="of validation")
    add("--json", type=Path, help="output: all pairs, and what could not be read")
    workers = min(8, len(os.sched_getaffinity(0)))
    add("--workers", type=cli.positive_int, default=workers, help="processes that decode")
    return parser


@cli.step(make_parser)
def main(args: argparse.Namespace) -> int:
    splits = {"validation": args.validation, "test": args.test}
    held_out = {name: paths for name, paths in splits.items() if paths}
    if not held_out:
        make_parser().error("give --test or --validation")
    try:
        # The lane installs with torch alone.
        with extras.needed("splits", "millrace.audit.check_splits"):
            from millrace.audit.splits import compare, table

            pairs, compared = compare.compare(args.train, held_out, args.workers)
    except (MillraceError, OSError) as error:
        cli.log.error("%s", error)
        return 2  # 1 is a pair
    if args.json:
        atomic.write_json(args.json, table.document(pairs, compared))
    print(table.text(pairs, compared, MOST_LINES))
    return 1 if pairs else 0


if __name__ == "__main__":
    raise SystemExit(main())
