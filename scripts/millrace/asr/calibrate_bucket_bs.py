"""Find the largest batch of a bucket that trains within a memory limit, and soak it.

An --output that still holds, because nothing in its key has changed, is kept. millrace.asr.verify_calibration
checks the merged calibrated_bs.json of all buckets on all ranks. GB are 2**30 bytes.
"""

from __future__ import annotations

import argparse

from millrace.asr.calibration import options
from millrace.asr.calibration.options import Choices
from millrace.common import cli
from millrace.common.training.settings import flag_names


def make_parser() -> argparse.ArgumentParser:
    parser = cli.parser(__doc__, __spec__.name if __spec__ else None)
    parser.add_argument("--bucket", required=True, help="bucket to calibrate, such as b_7_10")
    options.add_arguments(parser)
    for name, text in (
        ("start_bs", "batch size of the first trial"),
        ("min_bs", "smallest batch size worth training"),
        ("max_bs", "largest batch size to try"),
        ("steps", "training steps of a trial, at least 2"),
        ("world_size", "ranks of the training"),
    ):
        parser.add_argument(
            *flag_names(name), type=cli.positive_int, default=getattr(Choices, name), help=text
        )
    return parser


@cli.step
def main(argv: list[str] | None = None) -> None:
    args = make_parser().parse_args(argv)
    from millrace.asr.calibration import bucket

    calibration, kept = bucket.calibrate_bucket(Choices.from_args(args), args.output)
    if calibration is None:
        cli.log.info("%s has no rows", args.bucket)
        return
    cli.log.info(
        "%s (%s): %d rows, limited by %s; peak %.3f GB of %.3f GB",
        calibration["bucket"],
        "kept" if kept else "measured",
        calibration["batch_size"],
        calibration["limited_by"],
        calibration["peak_memory_gb"],
        calibration["key"]["limit_gb"],
    )


if __name__ == "__main__":
    raise SystemExit(main())
