"""Find the largest batch of a bucket that trains within a memory limit, and soak it.

An --output that still holds, because nothing in its key has changed, is kept.
millrace.asr.verify_calibration checks the merged calibrated_bs.json of all buckets on all ranks. GB
are 2**30 bytes.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from millrace.asr.calibration import options
from millrace.asr.calibration.options import Choices
from millrace.common import cli, processes, settings
from millrace.common.errors import MillraceError
from millrace.common.training.ranks import Ranks


def make_parser() -> argparse.ArgumentParser:
    parser = cli.parser(__doc__, __spec__)
    parser.add_argument(
        "--bucket",
        default="",
        help="bucket to calibrate, such as b_7_10",
    )
    mode = (
        "verify_all: merge what was calibrated, unless there is --calibration, and train on all"
        " buckets, "
    )
    mode += "as millrace.asr.verify_calibration does (default %(default)s)"
    parser.add_argument(
        "--mode", choices=["calibrate", "verify_all"], default="calibrate", help=mode
    )
    options.add_arguments(parser)
    settings.add_arguments(parser, Choices, ("start_bs", "min_bs", "max_bs", "steps", "world_size"))
    return parser


@cli.step(make_parser)
def main(args: argparse.Namespace) -> None:
    if args.mode == "verify_all":
        processes.take_training_environment()
        from millrace.asr.calibration import merge, steps

        args.calibration = args.calibration or merge.merge_folder(
            args.bucket_config, Path(options.FOLDER)
        )
        steps.verify(*options.verification(args))
        return
    if not args.bucket:
        raise MillraceError(
            "no bucket was named", "--bucket", "Name one, or take --mode verify_all"
        )
    if Ranks.from_environment().world_size > 1:
        problem = "a bucket is calibrated by one process, not by several ranks"
        raise MillraceError(problem, "--bucket", "Start it without torchrun")
    from millrace.asr.calibration import cache

    args.calibration = None
    output = args.output or Path(options.FOLDER, "buckets", f"{args.bucket}.json")
    calibration, kept = cache.calibrate_bucket(Choices.from_args(args), output)
    if calibration is None:
        cli.log.info("%s has no rows", args.bucket)
        return
    how = "kept" if kept else "measured"
    facts = (calibration["batch_size"], calibration["limited_by"], calibration["peak_memory_gb"])
    cli.log.info("%s (%s): %d rows, limited by %s; peak %.3f GB", args.bucket, how, *facts)


if __name__ == "__main__":
    raise SystemExit(main())
