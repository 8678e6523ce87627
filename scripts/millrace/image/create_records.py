"""Convert an image folder to record files (HDF5): images of a fixed size.

    python -m millrace.image.create_records --raw_data_dir=ImageNet --local_scratch_dir=records

The folder holds train/<class>/<images> and val/ or validation/ likewise, or flat with
synset_labels.txt. Run again, it goes on with what is not finished. The workflow gives one partition
to each job instead.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from millrace.common import atomic, cli, settings
from millrace.common.leaks import leakage
from millrace.common.workflow import placements
from millrace.image.records.deal import FilePlan
from millrace.image.records.folder import read_tree
from millrace.image.records.options import RecordOptions


def make_parser() -> argparse.ArgumentParser:
    parser = cli.parser(__doc__, __spec__)
    add = parser.add_argument
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--raw-data-dir", type=Path, help="image folder")
    source.add_argument(
        "--partition", type=Path, help="JSON file of some record files, of the workflow"
    )
    add("--local-scratch-dir", type=Path, required=True, help="folder that gets train/ and val/")
    add(
        "--report",
        type=Path,
        help="JSON file to write of a partition: rejects and odd images by file",
    )
    add("--threads", type=cli.positive_int, default=os.cpu_count() or 1, help="images at a time")
    add("--on-leak", choices=leakage.WORDS, default=leakage.REJECT, help=leakage.HELP)
    settings.add_arguments(parser, RecordOptions)
    return parser


@cli.step(make_parser, cli.hyphenated)
def main(args: argparse.Namespace) -> None:
    from millrace.image.records.conversion import Conversion, of_tree
    from millrace.image.records.convert import convert, finish

    if args.partition:
        part = placements.read_partition(args.partition)
        plans = [FilePlan.from_dict(each) for each in part["files"]]
        conversion = Conversion(plans, part, args.local_scratch_dir / part["split"])
        facts = convert(conversion, args.threads)
        report = {plan.name: noted for plan, noted in zip(plans, facts, strict=True)}
        if args.report:
            atomic.write_json(args.report, report)
        return
    options = settings.from_args(RecordOptions, args)
    options.check("create_records")
    tree = read_tree(args.raw_data_dir)
    for note in tree.notes:
        cli.log.warning("%s", note)
    conversions = [of_tree(tree, name, options, args.local_scratch_dir) for name in tree.rows]
    for conversion in conversions:
        convert(conversion, args.threads)
    train, val = conversions
    for conversion, held_out in ((val, None), (train, val)):
        finish(conversion, held_out, args.on_leak, options.max_error_fraction, args.threads)


if __name__ == "__main__":
    raise SystemExit(main())
